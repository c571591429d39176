"""`rlproxy chat` at a real terminal: words as they come, one letter to rate, two versions to pick from."""

from __future__ import annotations

import asyncio
import os

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.records import CompletionQuery, Rating
from tests.harness.terminal import CTRL_C, CTRL_D, Terminal


def at(proxy: Proxy, *flags: str) -> Terminal:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | {"TERM": "dumb"}
    return Terminal("chat", "--home", str(proxy.home), *flags, env=env)


RATE, PICK = "or write on", "Enter: neither, or write on"


async def leave(terminal: Terminal) -> None:
    await terminal.expect("> ")
    terminal.type(CTRL_D)
    assert await terminal.ended() == 0 and terminal.after == terminal.before


async def test_a_conversation_and_a_letter_for_each_answer(cli: Proxy) -> None:
    async with at(cli, "--system", "Be brief.") as terminal:
        await terminal.expect("> ")
        terminal.type("hello there\n")
        await terminal.expect("You said: hello there")
        await terminal.expect(RATE)
        terminal.type("g\n")
        await terminal.expect("rated good: “You said: hello there")
        terminal.type("and again\n")
        await terminal.expect("You said: and again")
        await terminal.expect(RATE)
        terminal.type("B\n")
        await terminal.expect("rated bad: “You said: and again")
        await terminal.expect("why?")
        terminal.type("too long\n")
        await terminal.expect("your reason is kept")
        terminal.type("/new\n")
        await terminal.expect("from the beginning")
        terminal.type("new\n")
        await terminal.expect(RATE)
        await leave(terminal)
    counts = (await cli.get("/rl/status"))["counts"]
    assert (counts["done"], counts["good"], counts["bad"]) == (3, 1, 1)
    assert [rating.comment for rating in await ratings(cli)] == [None, "too long"]
    roles = [[message["role"] for message in body["messages"]] for body in cli.backend.requests]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]


async def ratings(proxy: Proxy) -> list[Rating]:
    """Those that hold, oldest first."""
    found = [rating for row in (await proxy.store.inbox.page(CompletionQuery())).rows for rating in row.ratings]
    return sorted(found, key=lambda rating: rating.created_at)


async def test_words_that_begin_like_a_rating_rate_nothing(cli: Proxy) -> None:
    """However slowly they are typed; and they are the next message."""
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type("hello there\n")
        await terminal.expect(RATE)
        for words in ("but why?", "good one", "gg", "b b"):
            await terminal.expect("> ")
            for letter in words:
                terminal.type(letter)
                await asyncio.sleep(0.15 if words == "but why?" else 0.0)
            terminal.type("\n")
            await terminal.expect(f"You said: {words}")
            await terminal.expect(RATE)
        await leave(terminal)
    assert await ratings(cli) == []


async def test_a_letter_that_is_meant_for_the_model(cli: Proxy) -> None:
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type("g\n")
        await terminal.expect("there is no answer here to rate")
        terminal.type(" b\n")
        await terminal.expect("You said: b")
        await leave(terminal)
    assert len(cli.backend.requests) == 1 and await ratings(cli) == []


async def test_help_says_what_can_be_typed(cli: Proxy) -> None:
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type("/help\n")
        shown = await terminal.expect("sends the letter to the model")
        assert all(word in shown for word in ("/new", "/rl help", "Ctrl-C", "you are asked why"))
        await leave(terminal)
    assert cli.backend.requests == []


async def test_a_command_in_place_of_a_reason(cli: Proxy) -> None:
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type("hello\n")
        await terminal.expect(RATE)
        terminal.type("b\n")
        await terminal.expect("why?")
        terminal.type("/rl undo\n")
        await terminal.expect("is taken back")
        await terminal.expect("> ")
        terminal.type("b\n")
        await terminal.expect("why?")
        terminal.type("\n")
        await leave(terminal)
    assert [(rating.value, rating.comment) for rating in await ratings(cli)] == [(-1.0, None)]


async def test_what_rlproxy_says_itself_is_not_offered_for_rating(cli: Proxy) -> None:
    async with at(cli) as terminal:
        for command in ("/rl status", "/rl", "rl:help"):
            await terminal.expect("> ")
            terminal.type(f"{command}\n")
            await terminal.expect("rlproxy: ")
        await terminal.expect("> ")
        terminal.type("g\n")
        await terminal.expect("there is no answer here to rate")
        await leave(terminal)
    assert RATE not in terminal.shown and await ratings(cli) == []


async def test_a_temperature_and_a_length_limit(cli: Proxy) -> None:
    for flags, said in (((), (0.7, 1024)), (("--temperature", "0", "--max-tokens", "3"), (0, 3))):
        async with at(cli, *flags) as terminal:
            await terminal.expect("> ")
            terminal.type("one two three four five six\n")
            await terminal.expect(RATE)
            await leave(terminal)
        body = cli.backend.requests[-1]
        assert (body["temperature"], body["max_tokens"]) == said
    assert "cut at its length limit" in terminal.shown


async def test_two_versions_and_a_pick(cli: Proxy) -> None:
    async with at(cli, "--vs", "base") as terminal:
        await terminal.expect("> ")
        terminal.type("which\n")
        await terminal.expect("You said: which")
        await terminal.expect("You said: which")
        await terminal.expect(PICK)
        terminal.type("b\n")
        shown = await terminal.expect("B is rated good")
        assert ("A was live, B was base" in shown) != ("A was base, B was live" in shown)
        terminal.type(CTRL_C)
        assert await terminal.ended(again=CTRL_C) == 0
    counts = (await cli.get("/rl/status"))["counts"]
    assert (counts["done"], counts["good"], counts["bad"]) == (2, 1, 1)
    # One of two is always bad: that says nothing of a version, and `rlproxy good` means none of them.
    assert await cli.store.opinions.votes(0) == []


async def test_words_that_begin_like_a_pick_pick_neither(cli: Proxy) -> None:
    async with at(cli, "--vs", "base") as terminal:
        await terminal.expect("> ")
        terminal.type("which\n")
        await terminal.expect(PICK)
        terminal.type("a bit more, please\n")
        await terminal.expect("neither was rated")
        await terminal.expect("You said: a bit more")
        await terminal.expect(PICK)
        terminal.type("\n")
        await terminal.expect("neither was rated")
        await leave(terminal)
    assert await ratings(cli) == [] and len(cli.backend.requests) == 4


async def test_a_command_is_given_once_and_is_no_part_of_the_chat(cli: Proxy) -> None:
    async with at(cli, "--vs", "base") as terminal:
        await terminal.expect("> ")
        terminal.type("which\n")
        await terminal.expect(PICK)
        terminal.type("a\n")
        await terminal.expect("A is rated good")
        await terminal.expect("> ")
        terminal.type("/rl 5\n")
        await terminal.expect("rated 5 of 5")
        await terminal.expect("> ")
        terminal.type("next\n")
        await terminal.expect(PICK)
        terminal.type("\n")
        await terminal.expect("neither was rated")
        await leave(terminal)
    said = [[message["content"] for message in body["messages"]] for body in cli.backend.requests]
    assert said[:2] == [["which"]] * 2 and said[2:] == [["which", said[2][1], "next"]] * 2


async def test_an_answer_that_is_stopped_can_be_rated(cli: Proxy) -> None:
    cli.backend.pause_s = 0.3
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type("one two three four five six seven eight nine ten\n")
        await terminal.expect("You said: one")
        terminal.type(CTRL_C)
        await terminal.expect("(stopped)")
        await terminal.expect("stopped, and not gone on from: g good")
        terminal.type("b\n")
        await terminal.expect("rated bad: “You said: one")
        terminal.type("\n")
        cli.backend.pause_s = 0.0
        await terminal.expect("> ")
        terminal.type("short\n")
        await terminal.expect("You said: short")
        await terminal.expect(RATE)
        await leave(terminal)
    assert [m["content"] for m in cli.backend.requests[-1]["messages"]] == ["short"], "not from what was stopped"
    async with asyncio.timeout(10):
        while (await cli.get("/rl/status"))["counts"]["partial"] != 1:
            await asyncio.sleep(0.05)
    (rating,) = await ratings(cli)
    partial = [row for row in (await cli.get("/rl/completions"))["data"] if row["status"] == "partial"]
    assert rating.value == -1 and [row["id"] for row in partial] == [rating.completion_id]


async def test_commands_that_are_unknown_are_refused(cli: Proxy) -> None:
    async with at(cli) as terminal:
        for words in ("/undo", "/exit now"):
            await terminal.expect("> ")
            terminal.type(f"{words}\n")
            await terminal.expect(f"there is no {words.split()[0]} here, so nothing was sent; /help lists")
        for words in ("/etc/hosts is what?", " /undo"):
            await terminal.expect("> ")
            terminal.type(f"{words}\n")
            await terminal.expect(f"You said: {words.strip()}")
            await terminal.expect(RATE)
        await terminal.expect("> ")
        terminal.type("b\n")
        await terminal.expect("why?")
        terminal.type("/quit\n")
        await terminal.expect("there is no /quit here")
        await leave(terminal)
    assert len(cli.backend.requests) == 2
    assert [(rating.value, rating.comment) for rating in await ratings(cli)] == [(-1.0, None)]


async def test_words_wrap(cli: Proxy) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROXY_", "COLUMNS"))} | {"TERM": "dumb"}
    words = [f"word{i}" for i in range(30)]
    async with Terminal("chat", "--home", str(cli.home), env=env, columns=40) as terminal:
        await terminal.expect("> ")
        terminal.type(" ".join(words[:10]) + "\n")
        await terminal.expect("You said:")
        answer = await terminal.expect("word9")
        await terminal.expect(RATE)
        await leave(terminal)
    lines = f"You said:{answer}".replace("\r", "").split("\n")
    assert len(lines) > 1 and all(len(line.rstrip()) <= 40 for line in lines)
    assert " ".join(" ".join(lines).split()) == "You said: " + " ".join(words[:10])


async def test_a_version_that_is_not_there_is_told_at_the_start(cli: Proxy) -> None:
    for flag in ("--version", "--vs"):
        async with at(cli, flag, "v9") as terminal:
            assert await terminal.ended() == 2
            assert "there is no version v9; there is base" in terminal.shown and "> " not in terminal.shown


async def test_errors_are_sentences_and_the_chat_goes_on(cli: Proxy) -> None:
    async with at(cli) as terminal:
        await terminal.expect("> ")
        cli.backend.fail_next = 2  # it is asked again without what makes captures exact
        terminal.type("hello\n")
        await terminal.expect("rlproxy: ")
        await leave(terminal)
    assert "Traceback" not in terminal.shown
    code, _, err = await rlproxy(cli.home, "chat")
    assert code == 2 and "needs a terminal" in err
