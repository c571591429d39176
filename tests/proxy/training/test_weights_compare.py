"""Same model or not: the sentences and the bounds, as pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.backends.base import ModelDescription
from proxy.training.weights_compare import (
    CHATS,
    MAX_DISTANCE,
    MAX_REGRET,
    ProbeAnswer,
    Rendering,
    WeightsVerdict,
    compare,
)

PROMPT, REPLY = [1, 2, 3], [4, 5]


def weights(logprobs: tuple[float, ...] = (-0.5, -0.5), best: tuple[float, ...] | None = None, **more: Any) -> Any:
    read = {
        "prompt_ids": PROMPT,
        "rendered": "<user>hi<bot>",
        "theirs": "<user>hi<bot>",
        "their_tokens": 3,
        "reply_ids": REPLY,
        "logprobs": list(logprobs),
        "best": list(best or logprobs),
    }
    counts = {"way": "the weights' chat template", "explained": 3, "known": 3, "wrong": None}
    found = counts | {"architecture": "llama", "vocabulary": 512, "tokens": 500, "width": 64, "parameters": 1_000_000}
    conversation = {key: more.pop(key) for key in list(more) if key in read}
    return {"unscored": None, **found, "conversations": [read | conversation for _ in CHATS], **more}


def said(**more: Any) -> list[ProbeAnswer]:
    exact: dict[str, Any] = {"prompt_ids": PROMPT, "reply_ids": REPLY, "logprobs": [-0.5, -0.5], "prompt_tokens": 3}
    return [ProbeAnswer(**{"text": "hello", "ended": False} | exact | more) for _ in CHATS]


def test_the_same() -> None:
    found = compare(ModelDescription("x", "llama", 512, 64, 1_010_000), said(), weights())
    assert found == WeightsVerdict(
        "same",
        "the server runs what trains: architecture, vocabulary, chat template, log-probs 0 nats a token apart",
        0.0,
        0.0,
        Rendering(True, "the server renders a conversation as the weights' chat template does")._asdict(),
        noise={"mean": 0.0, "deviation": 0.0, "tokens": 6},
    )
    assert (
        compare(ModelDescription(vocabulary=500), said(), weights()).state == "same"
    )  # of the tokeniser, without what pads it


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (ModelDescription(architecture="qwen2"), "it is a qwen2, the weights are a llama"),
        (ModelDescription(vocabulary=513), "it knows 513 tokens, the weights 512"),
        (ModelDescription(width=128), "its hidden states have 128 numbers, those of the weights 64"),
        (ModelDescription(parameters=2_000_000), "it has 2 million parameters, the weights 1"),
    ],
)
def test_another_kind_of_model(told: ModelDescription, word: str) -> None:
    found = compare(told, said(), weights())
    assert found.state == "other" and found.line == f"the server does not run what trains: {word}"


def test_the_noise_that_a_run_may_calibrate_on() -> None:
    """What the weights give a token less what the server gave it."""
    found = compare(ModelDescription(), said(logprobs=[-0.45, -0.6]), weights())
    assert found.noise == {"mean": pytest.approx(0.025), "deviation": pytest.approx(0.075), "tokens": 6}
    assert compare(ModelDescription(), said(logprobs=None), weights()).noise is None
    assert compare(ModelDescription(), said(logprobs=[-5.0, -5.0]), weights()).noise is None, "another model"
    assert compare(ModelDescription(), said(), weights(), scored=False).noise is None


def test_another_tokeniser() -> None:
    other = said(prompt_ids=[1, 2, 2, 3], prompt_tokens=4)
    assert "another tokeniser" in compare(ModelDescription(), other, weights(their_tokens=4)).line
    assert "as token 3, and the weights have 500" in compare(ModelDescription(), other, weights(theirs=None)).line


def test_another_template_is_no_obstacle_where_the_server_tells_how_it_renders() -> None:
    theirs = "<user>hi\n<bot>"
    for known in ({"prompt_ids": [1, 2, 2, 3]}, {"prompt_ids": None, "prompt_text": theirs}):
        found = compare(ModelDescription(), said(prompt_tokens=4, **known), weights(theirs=theirs, their_tokens=4))
        assert found.state == "same" and found.rendering is not None and found.rendering["known"]
        assert "another chat template than the weights (at character 8 '\\n<bot>'" in found.rendering["line"]
        assert (found.rendering["server"], found.rendering["weights"]) == (theirs, "<user>hi<bot>")


def test_a_rendering_of_another_length_than_the_server_read_is_none() -> None:
    found = compare(ModelDescription(), said(prompt_ids=None, prompt_text="<user>hi<bot>", prompt_tokens=2), weights())
    assert found.state == "other" and "read 2 tokens, and the prompt that it says it renders has 3" in found.line


def test_where_a_server_tells_only_how_many_tokens_it_read_that_decides() -> None:
    """Alpaca's template: 0.45 nats apart, and twice as many tokens as the server read."""
    texts = said(prompt_ids=None, reply_ids=None, prompt_tokens=2)
    untold: dict[str, Any] = {"theirs": None, "their_tokens": None, "logprobs": (-0.95, -0.95)}
    way = {"way": "the weights' chat template with no default system text"}
    fits = compare(ModelDescription(), texts, weights(**untold, **way))
    assert fits.state == "same" and fits.rendering is not None and "explains all 3 counts" in fits.rendering["line"]
    some = compare(ModelDescription(), texts, weights(**untold, **way, explained=2))
    assert some.state == "other" and "in 2 of 3 prompts only" in some.line
    none = compare(
        ModelDescription(), texts, weights(**untold, explained=0, wrong="the server read 2 tokens where … makes 3")
    )
    assert none.state == "other" and "nothing can train on what it reads" in none.line
    assert none.rendering is not None and not none.rendering["known"]


def test_quantisation_is_tolerated_up_to_a_bound_and_another_model_is_not() -> None:
    inside = compare(ModelDescription(), said(), weights((-0.5 - 0.9 * MAX_DISTANCE,) * 2))
    assert inside.state == "same" and inside.apart == pytest.approx(0.9 * MAX_DISTANCE)
    outside = compare(ModelDescription(), said(), weights((-0.5 - 1.1 * MAX_DISTANCE,) * 2))
    assert outside.state == "other" and "0.55 nats a token off, 0.5 may be quantisation (another model" in outside.line
    texts = said(prompt_ids=None, reply_ids=None, logprobs=None)
    best = (-0.1, -0.1)
    inside = compare(ModelDescription(), texts, weights((-0.1 - 0.9 * MAX_REGRET,) * 2, best))
    assert inside.state == "same" and inside.apart is None and "greedy replies" in inside.line
    outside = compare(ModelDescription(), texts, weights((-0.1 - 1.1 * MAX_REGRET,) * 2, best))
    assert outside.state == "other" and "say something else" in outside.line


def test_log_probs_are_compared_only_where_they_are_of_the_same_tokens() -> None:
    for logprobs in ([-0.5], [-0.5, -0.5, -0.5], [-0.5, -9999.0]):
        found = compare(ModelDescription(), said(reply_ids=None, logprobs=logprobs), weights())
        assert found.apart is None and found.state == "same", logprobs
    ended = compare(
        ModelDescription(), said(reply_ids=None, logprobs=[-0.5], ended=True), weights()
    )  # llama-server drops the end
    assert ended.apart == 0


def test_what_cannot_be_compared_is_said() -> None:
    nothing = weights((), unscored="the weights need 30.0 GB of memory beside the server and 9.0 GB are free")
    found = compare(ModelDescription(vocabulary=512), said(), nothing)
    assert found.state == "unknown"
    assert found.line.startswith("vocabulary and chat template as in the weights, but log-probs could not be compared")
    silent = compare(
        ModelDescription(), said(text="", prompt_ids=None, reply_ids=None, logprobs=None), weights((), theirs=None)
    )
    assert silent.line == "log-probs could not be compared: its answers have no text and no token ids"
