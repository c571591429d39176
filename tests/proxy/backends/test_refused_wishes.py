"""What is remembered of a server that refuses our wishes, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.backends.refused_wishes import MOST, REFUSED_S, UNRELATED_S, RefusedWishes, Wishes
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import with_versions
from tests.harness.ollama import make_proxy

WISHES = Wishes("m", "chat", frozenset({"logprobs"}))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_refusal_holds_for_a_while_for_one_model_and_format() -> None:
    clock = Clock()
    known = RefusedWishes(clock)
    known.grant(WISHES)
    known.refuse(WISHES, "no log-probs")
    assert known.refusal(WISHES) == "no log-probs" and not known.is_granted(WISHES)
    others = (
        WISHES._replace(model="n"),
        WISHES._replace(dialect="completions"),
        WISHES._replace(members=frozenset()),
        WISHES._replace(shape=frozenset({"tools"})),
    )
    assert [known.refusal(other) for other in others] == [None] * 4
    clock.now += REFUSED_S
    assert known.refusal(WISHES) is None


def test_a_500_is_about_our_wishes_until_it_is_known_not_to_be() -> None:
    clock = Clock()
    known = RefusedWishes(clock)
    assert known.may_refuse(WISHES, 500, "Internal Server Error")
    known.acquit(WISHES)
    assert not known.may_refuse(WISHES, 500, "Internal Server Error")
    assert known.may_refuse(WISHES, 500, "KeyError: 'top_LogProbs'") and known.may_refuse(WISHES, 400, "no")
    clock.now += UNRELATED_S
    assert known.may_refuse(WISHES, 500, "Internal Server Error")
    known.grant(WISHES)
    assert not known.may_refuse(WISHES, 500, "out of memory") and not known.may_refuse(WISHES, 503, "logprobs")


def test_a_server_that_was_gone_is_asked_anew() -> None:
    known = RefusedWishes(Clock())
    known.refuse(WISHES, "no")
    known.forget()
    assert known.refusal(WISHES) is None


def test_names_of_models_do_not_fill_the_memory() -> None:
    known = RefusedWishes(Clock())
    for number in range(2 * MOST):
        for note in (known.grant, known.acquit):
            note(WISHES._replace(model=str(number)))
        known.refuse(WISHES._replace(model=str(number)), "no")
    assert len(known._granted) <= MOST and len(known._refused) <= MOST and len(known._unrelated) <= MOST


async def test_what_the_client_asked_for_is_in_both_questions(proxy: Proxy) -> None:
    """Also where we asked for more of the same."""
    proxy.backend.mood = "refuse-logprobs"
    response = await proxy.chat("x", logprobs=True, top_logprobs=2)
    assert response.status == 400
    first, second = proxy.backend.requests
    assert first["return_token_ids"] and "return_token_ids" not in second
    assert (second["logprobs"], second["top_logprobs"]) == (True, 2)


async def test_a_server_that_comes_back_is_asked_with_our_wishes_again(proxy: Proxy) -> None:
    proxy.backend.mood = "refuse-logprobs"
    for _ in range(2):
        assert (await proxy.chat("x")).status == 200
    assert [bool(body.get("logprobs")) for body in proxy.backend.requests] == [True, False, False]
    port = proxy.backend.port
    await proxy.backend.stop()
    assert (await proxy.chat("x")).status == 503
    proxy.backend.mood = "well"
    await proxy.backend.start(port)
    proxy.backend.requests.clear()
    response = await proxy.chat("x", temperature=1.0, top_p=1.0)
    assert response.status == 200 and [bool(body.get("logprobs")) for body in proxy.backend.requests] == [True]
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.end is not None and found.end.logprobs is not None


async def test_the_record_says_what_the_server_said(proxy: Proxy) -> None:
    proxy.backend.mood = "refuse-logprobs"
    for _ in range(2):
        response = await proxy.chat("x")
        found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
        assert found is not None and found.end is not None
        assert "refuses to: 'logprobs are not supported'" in (found.end.inexact_reason or "")


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
async def at_ollama(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Proxy]:
    """Before an Ollama whose model has a template of the GGUF's own: log-probs beside tools are refused."""
    ollama.own_template = True
    proxy = make_proxy(tmp_path / "home", ollama.url)
    await proxy.start()
    await with_versions(proxy, 1)
    yield proxy
    await proxy.stop()


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probs_refused_beside_tools_are_asked_for_without_them(
    at_ollama: Proxy, ollama: FakeOllama, stream: bool
) -> None:
    """A refused tool request took the log-probs of all others with it."""
    for tools in (TOOLS, TOOLS, None, TOOLS, None):
        response = await at_ollama.chat("x", stream=stream, **({"tools": tools} if tools else {}))
        assert response.status == 200 and await response.read()
    requests = [
        (bool(body.get("tools")), bool(body.get("logprobs")))
        for _, body in ollama.asked
        if body.get("messages") == [{"role": "user", "content": "x"}]
    ]
    assert requests == [(True, True), (True, False), (True, False), (False, True), (True, False), (False, True)]


async def test_what_one_version_refuses_the_others_refuse(at_ollama: Proxy, ollama: FakeOllama) -> None:
    """They run in the same server: a swap is no reason to be refused once more."""
    for model in ("fake", "fake@base", "fake@v1"):
        response = await at_ollama.chat("x", model=model, tools=TOOLS)
        assert response.status == 200 and await response.read()
    assert [bool(body.get("logprobs")) for _, body in ollama.asked if body.get("tools")] == [True, False, False, False]
