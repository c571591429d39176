"""Grades by criteria of the user's own, on the page."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from config.sections import Criterion
from proxy.core.errors import BadRequest
from proxy.web.pages.rubric import Graded, graded
from scripts.harness.in_process import Proxy
from tests.harness.visits import Visit
from tests.proxy.web.pages.test_inbox import asked

CRITERIA = [
    Criterion(name="Tone", grades=["rude", "cold", "plain", "warm", 'as "I" like it']),
    Criterion(name="True", grades=["wrong", "right"]),
]


@pytest.fixture
async def rubric(proxy: Proxy) -> AsyncIterator[Visit]:
    await proxy.stop()
    await proxy.start(rubric__criteria=[criterion.model_dump() for criterion in CRITERIA])
    visit = Visit(proxy.url)
    yield visit
    await visit.http.close()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"grade-0": "1"}, Graded(-1.0, "Tone: rude (1 of 5)")),
        ({"grade-0": "2", "grade-1": "2"}, Graded(0.25, "Tone: cold (2 of 5)\nTrue: right (2 of 2)")),
        ({"grade-0": "", "rating": "good"}, None),
    ],
)
def test_grades_come_to_their_mean_and_their_words(form: dict[str, str], expected: Graded | None) -> None:
    assert graded(form, CRITERIA) == expected


@pytest.mark.parametrize("text", ["0", "6", "x", "999999999999", "-1"])
def test_a_grade_that_there_is_not_rates_nothing(text: str) -> None:
    with pytest.raises(BadRequest, match="A grade of Tone is 1 to 5; nothing was rated"):
        graded({"grade-0": text}, CRITERIA)


async def test_the_page_shows_each_grade_with_its_words_and_keeps_them(proxy: Proxy, rubric: Visit) -> None:
    (id,) = await asked(proxy, "hello")
    assert f"/page/completions/{id}/grade" in await rubric.get("/")
    form = await rubric.get(f"/page/completions/{id}/grade")
    assert 'title="cold"' in form and 'title="as &#34;I&#34; like it"' in form and "<legend>True</legend>" in form
    await rubric.post(f"/page/completions/{id}/rate", comment="too curt", **{"grade-0": "2", "grade-1": "1"})
    whole = await proxy.store.completions.get(id)
    assert whole is not None
    (rating,) = whole.ratings
    assert (rating.value, rating.scale) == (-0.75, "unit")
    assert rating.comment == "too curt\nTone: cold (2 of 5)\nTrue: wrong (1 of 2)"
    await rubric.post(f"/page/completions/{id}/rate", status=400, **{"grade-0": "9"})


async def test_without_criteria_there_is_nothing_to_grade(proxy: Proxy, visit: Visit) -> None:
    (id,) = await asked(proxy, "hello")
    assert "/grade" not in await visit.get("/")
    await visit.get(f"/page/completions/{id}/grade", status=404)
