"""`rlproxy watch`: one key rates what is on the screen, and nothing else."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli.common import progress_line
from proxy.cli.watch import SETTLE_S, WAITING, WAITING_S, AnswerQueue, EarlierPanel, edited, read_earlier
from proxy.client import Refused
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.terminal import ROOT, SHOWN_S
from tests.harness.tmux import MISSING, Tmux, installed
from tests.proxy.cli.test_answers import answer

RATED = [{"rater": "owner", "value": 1.0, "scale": "thumb"}]


def page(*ids: int, **members: Any) -> list[dict[str, Any]]:
    """As the proxy lists them: newest first."""
    return [answer(id=f"rl-{id}", seq=id, **members) for id in sorted(ids, reverse=True)]


def current(queue: AnswerQueue) -> str | None:
    return queue.current["id"] if queue.current else None


def test_the_first_look_takes_the_newest_alone() -> None:
    queue = AnswerQueue()
    queue.update(page(1, 2, 3))
    assert (current(queue), queue.count) == ("rl-3", 1)


def test_an_answer_that_ends_meanwhile_waits_behind() -> None:
    queue = AnswerQueue()
    queue.update(page(1))
    queue.update(page(1, 2, 3))
    assert (current(queue), queue.count) == ("rl-1", 3)
    queue.drop("rl-1")
    assert current(queue) == "rl-2"


@pytest.mark.parametrize(
    "members",
    [
        {"turn": "side"}, {"status": "pending"}, {"status": "error"}, {"ratings": RATED},
        {"finish_reason": "tool_calls"}, {"finish_reason": "function_call"},
    ],
)  # fmt: skip
def test_what_never_comes(members: dict[str, Any]) -> None:
    queue = AnswerQueue()
    queue.update([])
    queue.update(page(5, **members))
    assert current(queue) is None


def test_what_waited_on_the_panel_before_comes_first() -> None:
    queue = AnswerQueue(notes=EarlierPanel(waiting=["rl-2", "rl-4"]))
    queue.update([*page(5, 6), *page(4, ratings=RATED), *page(1, 2, 3)])
    assert (queue.ids, current(queue)) == (["rl-2", "rl-6"], "rl-2")


@pytest.mark.parametrize(
    ("newest", "ids"), [("rl-4", ["rl-2", "rl-5", "rl-6"]), ("rl-6", ["rl-2", "rl-6"]), ("rl-gone", ["rl-2", "rl-6"])]
)
def test_after_a_kill_what_ended_meanwhile_comes_too(newest: str, ids: list[str]) -> None:
    queue = AnswerQueue(notes=EarlierPanel(newest, ["rl-2"]))
    queue.update(page(1, 2, 3, 4, 5, 6))
    assert (queue.ids, queue.newest) == (ids, "rl-6")


def test_what_a_panel_left_is_known_for_an_hour(tmp_path: Path) -> None:
    assert read_earlier(tmp_path) == EarlierPanel()
    file = tmp_path / WAITING
    file.write_text("rl-4\nrl-2\nrl-3\n")
    assert read_earlier(tmp_path) == EarlierPanel("rl-4", ["rl-2", "rl-3"])
    file.write_text("\nrl-2\n")  # of one that was closed
    assert read_earlier(tmp_path) == EarlierPanel("", ["rl-2"])
    os.utime(file, (time.time(), time.time() - WAITING_S - 1))
    assert read_earlier(tmp_path) == EarlierPanel("", [])


def test_one_that_is_rated_elsewhere_leaves_and_the_shown_one_stays() -> None:
    queue = AnswerQueue()
    queue.update([])
    queue.update(page(1, 2, 3))
    queue.move(1)
    assert current(queue) == "rl-2"
    queue.update([*page(2, 3), answer(id="rl-1", seq=1, ratings=RATED)])
    assert (current(queue), queue.place, queue.count) == ("rl-2", 1, 2)


def test_a_rating_that_is_taken_back_is_shown_again() -> None:
    queue = AnswerQueue()
    queue.update(page(1))
    shown = queue.current
    assert shown is not None
    queue.drop("rl-1")
    queue.update(page(1))
    assert current(queue) is None, "it was rated here, whatever the list says a moment later"
    queue.put_back(shown)
    assert current(queue) == "rl-1"


@given(st.lists(st.sampled_from(["answer", "rate", "skip", "left", "right", "look", "elsewhere"]), max_size=60))
def test_nothing_comes_twice_and_nothing_moves_by_itself(acts: Sequence[str]) -> None:
    queue, listed, rated, seen = AnswerQueue(), list[dict[str, Any]](), set[str](), list[str]()
    queue.update([])
    for act in acts:
        before = current(queue)
        if act == "answer":
            listed.insert(0, answer(id=f"rl-{len(listed)}", seq=len(listed)))
        elif act == "look":
            queue.update(listed)
            assert before is None or before in rated or current(queue) == before
        elif act == "elsewhere" and listed:
            one = random.Random(len(seen)).choice(listed)
            rated.add(one["id"])
            one["ratings"] = RATED
        elif act in ("left", "right"):
            queue.move(1 if act == "right" else -1)
        elif before is not None:
            queue.drop(before)
            seen.append(before)
    assert len(seen) == len(set(seen))


def test_how_far_the_next_run_is() -> None:
    line = "11 of 32 ratings for the next run"
    status = {"trains": None, "live": 2, "ratings": {"line": line}, "training": {"run": None}}
    assert progress_line(status) == f"v2 answers · {line}"
    under_way = {"run": 7, "line": "run 7, stage 4 of 5: checking the new version, check 7 of 13"}
    assert progress_line({**status, "training": under_way}) == f"v2 answers · {under_way['line']}"


def test_a_correction_is_what_the_editor_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s" "$TEXT" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    for text, correction in (("Paris.", "Paris."), ("as it was\n", None), ("", None)):
        monkeypatch.setenv("TEXT", text)
        assert edited("as it was") == correction
    monkeypatch.setenv("VISUAL", str(tmp_path / "nowhere"))
    with pytest.raises(Refused, match="did not end well"):
        edited("x")


# In a real terminal


async def shown_reply(terminal: Tmux, *, after: str | None = None) -> str:
    """The reply that the panel shows, once it is another one than `after`."""
    screen = ""
    try:
        async with asyncio.timeout(SHOWN_S):
            while True:
                screen = await terminal.screen()
                replies = re.findall(r"You said: \w+ \d+", screen.partition("rated ")[0])
                if replies and replies[-1] != after:
                    return str(replies[-1])
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"the panel stayed at {after}:\n{screen}") from None


@pytest.mark.skipif(not installed(), reason=MISSING)
async def test_in_a_terminal_each_answer_is_rated_once_and_as_meant(cli: Proxy, tmp_path: Path) -> None:
    """Answers come while keys are pressed, side turns among them; the panel is killed, and its window made small."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    env = {**inherited, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m proxy.cli watch --home {cli.home}"
    rated: dict[str, str] = {}

    async def ask(number: int) -> None:
        await cli.say(f"question {number}")
        if number % 4 == 3:
            await cli.say(f"title {number}", headers={"x-rl-turn": "side"})

    async with Tmux(env, columns=80, lines=16) as terminal:
        await terminal.line(command)
        await terminal.expect("none waits")
        await ask(0)
        last = None
        for number in range(1, 12):
            reply = await shown_reply(terminal, after=last)
            await ask(number)  # it waits behind what is shown
            await asyncio.sleep(SETTLE_S + 0.1)
            rated[reply] = "good" if number % 2 else "bad"
            await terminal.keys("1" if number % 2 else "2")
            await terminal.expect(f"rated {rated[reply]}: “{reply}”")
            last = reply
            if number == 5:
                await terminal.keys("C-c")
                await terminal.prompt()
                await terminal.clear()
                await terminal.line(command)
                last = None
            if number == 8:
                await terminal.resize(60, 12)
        await terminal.keys("u")
        await terminal.expect(f"taken back: {rated.pop(last or '')}")
        await terminal.keys("q")
        await terminal.prompt()
    stored = {}
    for completion in await cli.store.completions.page(limit=99):
        assert len(completion.ratings) <= 1
        for rating in completion.ratings:
            assert completion.end is not None and completion.new.turn == "main"
            stored[(completion.end.text or "").strip()] = "good" if rating.value > 0 else "bad"
    assert stored == rated and len(rated) > 5


@pytest.mark.skipif(not installed(), reason=MISSING)
async def test_a_small_pane_shows_the_answer_first(cli: Proxy, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    cli.backend.says, cli.backend.letter = "\n".join(f"line {number} of it" for number in range(9)), True
    async with Tmux({**env, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}, columns=80, lines=20) as terminal:
        await terminal.line(f"{sys.executable} -m proxy.cli watch --home {cli.home}")
        await terminal.expect("none waits")
        for word in ("good", "bad"):
            await cli.say("question")
            await terminal.expect("line 8 of it", "1 waits · ")
            await asyncio.sleep(SETTLE_S + 0.1)
            await terminal.keys("1" if word == "good" else "2")
            await terminal.expect(f"rated {word}: “line 0 of it", "none waits")
        await cli.say("question")
        await terminal.expect("line 8 of it")
        for lines in (9, 7, 5, 4):
            await terminal.resize(80, lines)
            await terminal.expect("1 waits · ", "\nline 0 of it\n", "1 good  2 bad")


@pytest.mark.skipif(not installed(), reason=MISSING)
async def test_two_replies_at_once_open_one_panel(cli: Proxy, tmp_path: Path) -> None:
    """The second hook looks while the first one's panel is still starting; after a kill there is one again."""
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    hook = f"{sys.executable} -m proxy.cli watch --open --home {cli.home}"
    async with Tmux({**env, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}, columns=80, lines=24) as terminal:
        (upper,) = await terminal.panes()
        await terminal.line(f"{hook} & {hook}; wait", pane=upper)
        await terminal.expect("the panel is open below", "the panel is open already", pane=upper)
        _, panel = await terminal.panes()
        assert len((await terminal.expect("none waits", pane=panel)).splitlines()) <= 9, (
            "the agent keeps the larger part"
        )
        await terminal.keys("q", pane=panel)
        async with asyncio.timeout(SHOWN_S):
            while panel in await terminal.panes():
                await asyncio.sleep(0.1)
        await terminal.line(f"clear; {hook}", pane=upper)
        await terminal.expect("the panel is open below", pane=upper)


async def test_for_programs_it_prints_lines_and_it_needs_a_terminal_otherwise(cli: Proxy) -> None:
    code, _, err = await rlproxy(cli.home, "watch")
    assert code == 2 and "draws on a terminal" in err
