"""`rlproxy answers`: what a line says of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.cli.answers import ago, name_value, rated_as, text_of
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy


def answer(**members: Any) -> dict[str, Any]:
    return {
        "id": "rl-1",
        "status": "done",
        "turn": "main",
        "text": "hi",
        "error": None,
        "finish_reason": "stop",
        "ratings": [],
        **members,
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (41, "41 s"), (60, "1 min"), (5400, "2 h"), (200_000, "2 d")]
)
def test_how_long_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


@pytest.mark.parametrize(
    ("value", "scale", "word"),
    [(1.0, "thumb", "good"), (-1.0, "thumb", "bad"), (0.5, "stars", "4/5"), (0.0, "unit", "neutral")],
)
def test_a_rating_in_a_word(value: float, scale: str, word: str) -> None:
    assert name_value(value, scale) == word


def test_whose_rating_counts() -> None:
    rated = answer(ratings=[{"rater": "ann", "value": -1.0, "scale": "thumb"}])
    assert (rated_as(rated), rated_as(rated, "ann"), rated_as(rated, "bob"), rated_as(answer())) == (
        "bad",
        "bad",
        "",
        "",
    )


def test_an_answer_without_words() -> None:
    assert text_of(answer(text="")) == "no words"
    assert text_of(answer(text=None, status="pending")) == "…"
    assert text_of(answer(text=None, status="error", error="the backend went away")) == "the backend went away"


async def test_the_newest_first_with_ids_and_ratings(cli: Proxy) -> None:
    for text in ("one", "two", "three"):
        await cli.chat(text)
    code, out, err = await rlproxy(cli.home, "answers", "--json")
    assert code == 0, err
    data = json.loads(out)["data"]
    await rlproxy(cli.home, "good", "--id", data[1]["id"])
    code, out, _ = await rlproxy(cli.home, "answers", "-n", "2")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2
    assert data[0]["id"] in lines[0] and "–" in lines[0]
    assert data[1]["id"] in lines[1] and "good" in lines[1]
    _, out, _ = await rlproxy(cli.home, "answers", "--unrated", "--json")
    assert [row["id"] for row in json.loads(out)["data"]] == [data[0]["id"], data[2]["id"]]
    code, out, _ = await rlproxy(cli.home, "answers", "--session", "nowhere")
    assert code == 0 and "None is like that." in out
