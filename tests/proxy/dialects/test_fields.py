"""Members of a body that are read as far as they can be: what most servers take them for, and where that is unclear."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.errors import BadRequest, Unreadable
from proxy.dialects import CHAT, DIALECTS, MESSAGES, OLLAMA, Dialect
from proxy.dialects.completions import Completions
from proxy.dialects.fields import count, flag, numbers

COMPLETIONS = Completions()


@pytest.mark.parametrize(
    ("value", "number", "is_clear"),
    [
        (0.7, 0.7, True),
        (1, 1.0, True),
        (0, 0.0, True),
        ("0.7", 0.7, False),
        (" 1e0 ", 1.0, False),
        (True, None, False),
        ("warm", None, False),
        ("nan", None, False),
        ("inf", None, False),
        (float("inf"), None, False),
        ([0.7], None, False),
        ({}, None, False),
        (10**400, None, False),
    ],
)
def test_numbers(value: Any, number: float | None, is_clear: bool) -> None:
    values, unclear = numbers({"temperature": value}, ("temperature", "top_p"))
    assert values == ({} if number is None else {"temperature": number})
    assert unclear == (() if is_clear else ("temperature",))


@pytest.mark.parametrize(("value", "wanted"), [(1, 1), (3, 3), (1.0, 1), (2.0, 2), ("2", 2), (True, 1), (128, 128)])
def test_how_many_answers(value: Any, wanted: int) -> None:
    assert count({"n": value}) == wanted


@pytest.mark.parametrize("value", [0, -1, 1.5, "x", "", None, [], float("nan"), False, {}])
def test_a_count_that_makes_no_sense_is_the_backends_to_refuse(value: Any) -> None:
    assert count({"n": value}) == 1


@pytest.mark.parametrize("value", [129, 129.0, "129", 10**300])
def test_more_answers_than_are_kept_apart(value: Any) -> None:
    with pytest.raises(BadRequest, match="between 1 and 128"):
        count({"n": value})


@pytest.mark.parametrize("value", [True, "true", "True", " yes", "1", 1, 1.0])
def test_true(value: Any) -> None:
    assert flag({"stream": value}, "stream", False)


@pytest.mark.parametrize("value", [False, "false", "FALSE", "no", "0", 0, "", "maybe", [], {}, 2])
def test_false(value: Any) -> None:
    assert not flag({"stream": value}, "stream", True)


def prompt_of(dialect: Dialect) -> dict[str, Any]:
    messages = [{"role": "user", "content": "x"}]
    return (
        {"messages": messages} | {"prompt": "x", "input": "x"} if dialect.name != "messages" else {"messages": messages}
    )


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_only_what_has_to_be_read_has_to_make_sense(dialect: Dialect) -> None:
    options = {"temperature": "0.7", "top_p": True}
    body = {**prompt_of(dialect), "model": "m", "stream": "false", "n": 1.0, **options, "options": options}
    body |= {"metadata": {"user_id": 3}, "text": "x", "include": "x", "reasoning": 3, "stream_options": 3}
    asked = dialect.parse(body)
    assert (asked.model, asked.stream, asked.n, asked.unreadable) == ("m", False, 1, None)
    assert asked.sampling == {"temperature": 0.7} and sorted(asked.unclear) == ["temperature", "top_p"]
    with pytest.raises(BadRequest, match="`model` must be a string"):
        dialect.parse({**body, "model": 3})


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, {"messages": [{"content": "x"}]}),
        (COMPLETIONS, {"prompt": [1, "x"]}),
        (COMPLETIONS, {"prompt": {"prompt_string": "x", "multimodal_data": []}}),
        (MESSAGES, {"messages": [{"role": "user", "content": 3}]}),
        (OLLAMA, {"messages": [{"role": "user", "content": ["x"]}]}),
    ],
)
def test_what_cannot_be_read_is_known_by_its_model_alone(dialect: Dialect, body: dict[str, Any]) -> None:
    with pytest.raises(Unreadable) as error:
        dialect.parse({"model": "m", **body})
    asked = dialect.unread({"model": "m", "stream": True, **body}, error.value)
    assert (asked.model, asked.stream, asked.messages, asked.typed) == ("m", True, [], False)
    with pytest.raises(BadRequest, match="`model`"):
        dialect.unread({**body, "model": []}, error.value)


@pytest.mark.parametrize(
    ("body", "n", "prompts"),
    [
        ({"prompt_embeds": "aGk="}, 1, [{"type": "prompt_embeds"}]),
        ({"prompt_embeds": ["aGk=", "aGk="], "n": 2}, 4, [{"type": "prompt_embeds"}] * 2),
        ({"prompt_embeds": ["aGk="], "prompt": []}, 1, [{"type": "prompt_embeds"}]),
        ({"prompt_embeds": "aGk=", "prompt": "x"}, 2, [{"type": "text", "text": "x"}, {"type": "prompt_embeds"}]),
    ],
)
def test_a_prompt_of_embeddings_never_trains(body: dict[str, Any], n: int, prompts: list[Any]) -> None:
    asked = COMPLETIONS.parse({"model": "m", **body})
    assert (asked.n, asked.untrainable, asked.typed) == (n, "prompt_embeds", False)
    assert asked.messages == [{"role": "user", "content": [{"type": "prompts", "prompts": prompts}]}]
    assert "prompt_embeds" in COMPLETIONS.carriers
    with pytest.raises(BadRequest, match="cannot say"):
        COMPLETIONS.to_chat({"model": "m", **body}, asked)
