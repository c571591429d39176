"""`rlproxy chat` at a real terminal: words as they come, one key to rate, two versions to pick from."""

from __future__ import annotations

import asyncio
import os

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.terminal import CTRL_C, CTRL_D, Terminal
from tests.proxy.cli.test_app import cli  # noqa: F401


def at(proxy: Proxy, *flags: str) -> Terminal:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | {"TERM": "dumb"}
    return Terminal("chat", "--home", str(proxy.home), *flags, env=env)


async def test_a_conversation_and_a_key_for_each_answer(cli: Proxy) -> None:  # noqa: F811
    async with at(cli, "--system", "Be brief.") as terminal:
        await terminal.expect("> ")
        terminal.type("hello there\n")
        await terminal.expect("You said: hello there")
        await terminal.expect("Enter goes on")
        terminal.type("g")
        await terminal.expect("rated good")
        terminal.type("and again\n")
        await terminal.expect("You said: and again")
        await terminal.expect("Enter goes on")
        terminal.type("b")
        await terminal.expect("rated bad")
        terminal.type("/new\n")
        await terminal.expect("from the beginning")
        terminal.type("new\n")
        await terminal.expect("Enter goes on")
        terminal.type("\n")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0 and terminal.after == terminal.before
    counts = (await cli.get("/rl/status"))["counts"]
    assert (counts["done"], counts["good"], counts["bad"]) == (3, 1, 1)
    roles = [[message["role"] for message in body["messages"]] for body in cli.backend.requests]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]


async def test_two_versions_and_a_pick(cli: Proxy) -> None:  # noqa: F811
    async with at(cli, "--vs", "base") as terminal:
        await terminal.expect("> ")
        terminal.type("which\n")
        await terminal.expect("You said: which")
        await terminal.expect("You said: which")
        await terminal.expect("Enter: neither")
        terminal.type("b")
        shown = await terminal.expect("> ")
        assert ("A was live, B was base" in shown) != ("A was base, B was live" in shown)
        terminal.type(CTRL_C)
        assert await terminal.ended(again=CTRL_C) == 0
    counts = (await cli.get("/rl/status"))["counts"]
    assert (counts["done"], counts["good"], counts["bad"]) == (2, 1, 1)
    # One of two is always bad: that says nothing of a version, and `rlproxy good` means none of them.
    assert await cli.store.votes(0) == []


async def test_a_command_is_given_once_and_is_no_part_of_the_chat(cli: Proxy) -> None:  # noqa: F811
    async with at(cli, "--vs", "base") as terminal:
        await terminal.expect("> ")
        terminal.type("which\n")
        await terminal.expect("Enter: neither")
        terminal.type("a")
        await terminal.expect("> ")
        terminal.type("/rl 5\n")
        await terminal.expect("rated 5 of 5")
        await terminal.expect("> ")
        terminal.type("next\n")
        await terminal.expect("Enter: neither")
        terminal.type("\n")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0
    said = [[message["content"] for message in body["messages"]] for body in cli.backend.requests]
    assert said[:2] == [["which"]] * 2 and said[2:] == [["which", said[2][1], "next"]] * 2


async def test_an_answer_that_is_stopped(cli: Proxy) -> None:  # noqa: F811
    cli.backend.pause_s = 0.3
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type("one two three four five six seven eight nine ten\n")
        await terminal.expect("You said: one")
        terminal.type(CTRL_C)
        await terminal.expect("(stopped)")
        cli.backend.pause_s = 0.0
        terminal.type("short\n")
        await terminal.expect("You said: short")
        await terminal.expect("Enter goes on")
        terminal.type("\n")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0
    assert [m["content"] for m in cli.backend.requests[-1]["messages"]] == ["short"], "not from what was stopped"
    async with asyncio.timeout(10):
        while (await cli.get("/rl/status"))["counts"]["partial"] != 1:
            await asyncio.sleep(0.05)


async def test_errors_are_sentences_and_the_chat_goes_on(cli: Proxy) -> None:  # noqa: F811
    async with at(cli, "--version", "v9") as terminal:
        await terminal.expect("> ")
        terminal.type("hello\n")
        assert "v9" in await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0 and "Traceback" not in terminal.shown
    code, _, err = await rlproxy(cli.home, "chat")
    assert code == 2 and "needs a terminal" in err
