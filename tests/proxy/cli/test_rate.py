"""Ratings and questions from the command line: stars, corrections, one question; and the end of a proxy."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from proxy.cli.watch import SETTLE_S, SKIPPED
from proxy.core.address_file import ADDRESS_FILE
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from scripts.harness.serving import Serving
from store.records import CompletionQuery
from tests.harness.newcomer import Newcomer
from tests.harness.terminal import ROOT
from tests.harness.tmux import MISSING, Tmux, installed


async def test_stars(cli: Proxy) -> None:
    await cli.chat("a")
    code, out, _ = await rlproxy(cli.home, "good", "nice", "--stars", "4")
    assert code == 0 and out.startswith("rated 4 of 5: ")
    ((rating,),) = [row["ratings"] for row in (await cli.get("/rl/completions"))["data"]]
    assert (rating["scale"], rating["value"], rating["comment"]) == ("stars", 0.5, "nice")
    assert (await rlproxy(cli.home, "good", "--stars", "6"))[0] == 2


async def test_a_correction(cli: Proxy) -> None:
    code, _, err = await rlproxy(cli.home, "fix", "Better.")
    assert code == 1 and "no completion to rate yet" in err
    await cli.chat("a")
    newest = (await cli.chat("b")).headers["x-rl-completion-id"]
    await cli.chat("c", headers={"x-rl-turn": "side"})
    code, out, _ = await rlproxy(cli.home, "fix", "Better", "words.")
    assert code == 0 and newest in out and "it trains towards your words" in out
    rows = (await cli.store.inbox.page(CompletionQuery())).rows
    (rating,) = [rating for row in rows for rating in row.ratings]
    assert (rating.completion_id, rating.value, rating.correction) == (newest, -1.0, "Better words.")
    code, _, err = await rlproxy(cli.home, "fix", "x", "--id", "rl-unknown")
    assert code == 1 and "no such completion" in err


async def test_a_correction_is_of_the_answer_that_good_rates(cli: Proxy) -> None:
    bob = (await cli.chat("a", headers={"x-rl-user": "bob"})).headers["x-rl-completion-id"]
    await cli.chat("b", headers={"x-rl-user": "ann"})
    for act in (("good",), ("fix", "Better.")):
        code, out, err = await rlproxy(cli.home, *act, "--rater", "bob")
        assert code == 0 and bob in out, err
    first = (await cli.chat("c", n=2)).headers["x-rl-completion-id"]
    for act in (("good",), ("fix", "Better."), ("skip",)):
        code, out, err = await rlproxy(cli.home, *act)
        assert code == 0 and f"({first})" in out, err
    ratings = {row["id"]: len(row["ratings"]) for row in (await cli.get("/rl/completions"))["data"]}
    assert sum(ratings.values()) == ratings[bob] + ratings[first] == 2


@pytest.mark.parametrize("text", ["-", "", " "])  # commands of these tests have nothing in their pipe
async def test_a_correction_without_words_changes_nothing(cli: Proxy, text: str) -> None:
    newest = (await cli.chat("a")).headers["x-rl-completion-id"]
    assert (await rlproxy(cli.home, "fix", "Better."))[0] == 0
    code, out, err = await rlproxy(cli.home, "fix", text)
    assert (code, out) == (1, "") and "no words, so nothing was sent" in err
    (rating,) = await cli.store.ratings.history(newest)
    assert rating.live and rating.correction == "Better."


@pytest.mark.skipif(not installed(), reason=MISSING)
async def test_what_was_skipped_is_not_shown_again(cli: Proxy, tmp_path: Path) -> None:
    await cli.chat("one")
    newest = (await cli.chat("two")).headers["x-rl-completion-id"]
    code, out, _ = await rlproxy(cli.home, "skip")
    assert code == 0 and f"({newest})" in out
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    async with Tmux(env) as terminal:
        command = f"{sys.executable} -m proxy.cli watch --home {cli.home}"
        await terminal.line(command)
        await terminal.expect("You said: one", "1 good  2 bad")
        await asyncio.sleep(2 * SETTLE_S)  # a key right after a new answer does nothing
        await terminal.keys("3")
        await terminal.expect("skipped “You said: one")
        await terminal.keys("q")
        await terminal.prompt()
        await terminal.line(command)
        await terminal.expect("none waits")
    assert (cli.home / SKIPPED).read_text().split()[0] == newest


async def test_one_question(cli: Proxy) -> None:
    code, out, err = await rlproxy(cli.home, "ask", "why", "is", "it?")
    assert code == 0 and out.strip() == "You said: why is it?" and "rate it with `rlproxy good`" in err
    code, out, _ = await rlproxy(cli.home, "ask", "and?", "--json")
    answer = json.loads(out)
    assert answer["answer"].strip() == "You said: and?"
    code, out, _ = await rlproxy(cli.home, "good")
    assert code == 0 and answer["id"] in out
    code, _, err = await rlproxy(cli.home, "ask", "x", "--version", "v9")
    assert code == 2 and "no version v9" in err


async def test_stop_ends_what_serves_the_home(tmp_path: Path, weights: Path) -> None:
    code, _, err = await rlproxy(tmp_path / "home", "stop")
    assert code == 3 and "no rlproxy runs on" in err
    serving = Serving(tmp_path / "home", weights, "--backend", "vllm", "--backend-url", "http://127.0.0.1:1")
    await serving.start()
    code, out, err = await rlproxy(serving.home, "stop")
    assert code == 0 and f"process {serving.process.pid}) has ended" in out, err
    assert await serving.process.wait() == 0
    await serving.http.close()


@pytest.mark.skipif(not installed(), reason=MISSING)
async def test_a_hook_opens_the_panel_below_and_once(cli: Proxy, tmp_path: Path) -> None:
    person = Newcomer(tmp_path / "machine")
    program = person.bin / "rlproxy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m proxy.cli "$@"\n')
    program.chmod(0o755)
    person.env |= {"COLUMNS": "300", "LINES": "90"}  # exported by the shell that tmux was started from
    await cli.chat("one")
    async with Tmux(person.env) as terminal:
        await terminal.line(f"rlproxy watch --open --home {cli.home}")
        await terminal.expect("the panel is open below")
        await terminal._tmux("select-pane", "-t", ":.+")
        await terminal.expect("You said: one", "1 good  2 bad")
        await terminal._tmux("select-pane", "-t", ":.+")
        await terminal.clear()
        await terminal.line(f"rlproxy watch --open --home {cli.home}")
        await terminal.expect("the panel is open already")
        assert len((await terminal._tmux("list-panes")).splitlines()) == 2
    code, _, err = await rlproxy(cli.home, "watch", "--open", TMUX="")
    assert code == 0 and "no tmux is here" in err


async def test_a_further_models_answer_is_rated_and_said_not_to_train(cli: Proxy) -> None:
    await cli.stop()
    await cli.start(models={"coder": {"url": cli.backend.url, "model": "fake"}})
    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "pid": os.getpid()}))
    reason = "a further model answered, and only the home's own model trains"
    await cli.chat("a", model="coder")
    code, out, _ = await rlproxy(cli.home, "bad")
    assert code == 0 and f"this answer never trains: {reason}; the rating is kept, and exported" in out
    code, out, _ = await rlproxy(cli.home, "fix", "Better.")
    assert code == 0 and f"never trains: {reason}" in out and "it trains" not in out
    code, out, _ = await rlproxy(cli.home, "why")
    assert code == 0 and "fake, no adapter" in out and f"it never trains: {reason}" in out
    assert "coder: captured and rated, and never trained" in (await rlproxy(cli.home, "status"))[1]
