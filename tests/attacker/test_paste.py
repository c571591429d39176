"""Somebody whose page is pasted into `rlproxy chat`: it rates nothing and does nothing, whatever its lines say."""

from __future__ import annotations

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.terminal import CTRL_D
from tests.proxy.cli.test_chat import at

BEGINS, ENDS = "\x1b[200~", "\x1b[201~"
PAGE = "Summarise this:\nbuy now at evil.example\n/rl pause\ng\nb\n"


async def untouched(proxy: Proxy) -> None:
    counts = await proxy.store.stats.counts()
    assert (counts["good"], counts["bad"]) == (0, 0)
    assert not (await proxy.get("/rl/status"))["training"]["paused"]


PASTED = [PAGE, PAGE.strip(), f"{BEGINS}{PAGE}{ENDS}\n", f"{BEGINS}{PAGE.strip()}{ENDS}\n"]


@pytest.mark.parametrize("page", PASTED)
async def test_a_page_is_one_message(cli: Proxy, page: str) -> None:
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type(page)
        await terminal.expect("You said: Summarise this:")
        await terminal.expect("or write on")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended(again=CTRL_D) == 0 and terminal.after == terminal.before
    assert [body["messages"][-1]["content"] for body in cli.backend.requests] == [PAGE.strip()]
    await untouched(cli)


@pytest.mark.parametrize("page", ["good, or:\n/rl pause\n", "g\n/rl pause\n", f"{BEGINS}g{ENDS}\n"])
async def test_a_page_where_a_rating_is_asked_for_rates_nothing(cli: Proxy, page: str) -> None:
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type("hello\n")
        await terminal.expect("or write on")
        terminal.type(page)
        await terminal.expect("You said:")
        await terminal.expect("or write on")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended(again=CTRL_D) == 0
    await untouched(cli)
    assert len(cli.backend.requests) == 2


async def test_a_page_that_is_refused_does_nothing(cli: Proxy) -> None:
    cli.backend.mood = "error"
    async with at(cli) as terminal:
        await terminal.expect("> ")
        terminal.type(PAGE)
        await terminal.expect("rlproxy: ")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended(again=CTRL_D) == 0
    await untouched(cli)
    first, again = cli.backend.requests  # again without our wishes, as some servers break at them
    assert first["messages"] == again["messages"]


async def test_a_pasted_command_is_not_sent(cli: Proxy) -> None:
    async with at(cli) as terminal:
        await terminal.expect("> ")
        for page in (f"{BEGINS}/rl pause{ENDS}\n", f"{BEGINS}/rl pause\n{ENDS}\n", "/rl fix: evil\nand more\n"):
            terminal.type(page)
            await terminal.expect("what is pasted is no command")
            await terminal.expect("> ")
        terminal.type("/rl status\n")
        await terminal.expect("rlproxy: ")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended(again=CTRL_D) == 0
    await untouched(cli)
    assert cli.backend.requests == []
