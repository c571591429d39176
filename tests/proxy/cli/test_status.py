"""`rlproxy status --watch` at a real terminal, and what the status shows."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest
from rich.console import Console

from proxy.cli.status import table
from proxy.cli.tables import gate, show_adapters, show_run, show_runs
from proxy.core.address_file import ADDRESS_FILE
from proxy.training.rehearsal import UNTRIED, verdict
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.terminal import CTRL_C, Terminal

OTHER_SCREEN, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def env(proxy: Proxy) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")}, "TERM": "xterm"}


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
async def test_watch_redraws_and_leaves_the_terminal_as_it_was(cli: Proxy, how: str) -> None:
    async with Terminal("status", "--watch", "--home", str(cli.home), env=env(cli)) as terminal:
        await terminal.expect(OTHER_SCREEN)
        await terminal.expect("0 of the 4 that start a run: 0 good, 0 bad")
        await cli.chat("x")
        await cli.rate(completion_id="last", rating="good")
        await terminal.expect("1 of the 4 that start a run: 1 good, 0 bad")
        (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 1}))
        await terminal.expect("Ctrl-C ends it")
        if how == "ctrl-c":
            terminal.type(CTRL_C)
        else:
            terminal.process.send_signal(signal.SIGTERM)
        assert await terminal.ended() == 0
        assert terminal.shown.count(OTHER_SCREEN) == terminal.shown.count(BACK) == 1
        assert terminal.shown.rindex(CURSOR) > terminal.shown.rindex("\x1b[?25l") and "Traceback" not in terminal.shown
        assert terminal.after == terminal.before


async def test_watch_says_when_the_proxy_goes_and_goes_on_when_it_is_back(cli: Proxy) -> None:
    async with Terminal("status", "--watch", "--home", str(cli.home), env=env(cli)) as terminal:
        await terminal.expect("0 of the 4 that start a run")
        await cli.stop()
        await terminal.expect("no rlproxy answers at")
        await cli.start(server__port=int(cli.url.rpartition(":")[2]))
        terminal.type(CTRL_C)
        assert await terminal.ended() == 0


async def test_watch_without_a_terminal(cli: Proxy) -> None:
    code, _, err = await rlproxy(cli.home, "status", "--watch")
    assert code == 2 and "--json" in err
    async with Terminal("status", "--watch", "--json", "--home", str(cli.home), env=env(cli), columns=999) as terminal:
        await terminal.expect('{"model": "fake"')
        await terminal.expect('{"model": "fake"')
        terminal.type(CTRL_C)
        assert await terminal.ended() == 0


def status(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": "m", "live": 2, "previous": 1, "trains": None, "backend": {"state": "vllm", "lacks": None},
        "ratings": {
            "fresh": 9, "good": 9, "bad": 0, "stale": 1, "untrainable": {"has_image": 2}, "needed": 32,
            "line": "9 of 32 ratings for the next run, at this pace in about 2 hours",
        },
        "images": {"decoded": 3, "refused": 1, "waiting": 2, "problem": "pictures are not decoded",
                   "untrained": "pictures train with models of gemma3 and idefics3; the weights are of qwen3_vl"},
        "baseline": 0.25, "training": {"run": None, "line": "waits: 9 of 32", "progress": {}},
        "watch": None, "rebuild": None,
        "last_run": {"id": 7, "status": "rejected", "reason": "no", "metrics": {"acceptance": 0.9},
                     "gate": {"base_nll": {"value": 0.5, "bound": 0.3, "ok": False}}},
        "counts": {"done": 40, "captured_today": 3, "pending": 0, "partial": 1, "error": 2, "good": 9, "bad": 0},
        "database": {"state": "sound", "line": "sound", "checked_since": None},
        "match": {"rendering": None},
        "rehearsal": UNTRIED,
        "cut": None,
        "problem": None,
    }  # fmt: skip
    return found | changes


def shown(found: dict[str, Any]) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(table(found, "http://x"))
    return " ".join(capture.get().split())


def test_all_that_a_person_wants_to_know() -> None:
    text = shown(status())
    for part in (
        "base URL http://x/v1", "m, v2 answers (before: v1)",
        "9 of the 32 that start a run, at this pace in about 2 hours: 9 good, 0 bad, 1 too old to train",
        "2 never train (has a picture)", "only one kind of rating", "+0.25: your ratings in earlier runs on average",
        "7, rejected: no",
        "its gate rejected: base_nll 0.5 > 0.3 (the gate asks: does it still make sense", "90.0% of the rated tokens",
        "next run waits: 9 of 32",
        "40 whole answers, 3 today (1 partial)", "errors 2 failed answers",
        "pictures 3 decoded, 1 refused, 2 to be decoded", "pictures are not decoded",
        "answers about them do not train: pictures train with models of gemma3 and idefics3; the weights are of qwen",
    ):  # fmt: skip
        assert part in text, part
    assert "problem" not in text


def test_what_is_not_there_is_not_said() -> None:
    few = {
        "fresh": 7,
        "good": 7,
        "bad": 0,
        "stale": 0,
        "untrainable": {},
        "needed": 32,
        "line": "7 of 32",
        "dampened": {"eve": 4},
    }
    under_way = {"run": 8, "line": "run 8, step 1 of 4", "progress": {"filter": {"acceptance": 1.0}}}
    text = shown(status(ratings=few, last_run=None, training=under_way, problem="it broke"))
    assert "only one kind" not in text and "last run" not in text and "waiting for other raters: 4 of eve" in text
    assert "this run run 8, step 1 of 4" in text and "problem it broke" in text


def test_episodes_are_told_with_groups_that_were_compared_and_what_was_left_out() -> None:
    assert "episodes" not in shown(status())
    counts = {"open": 3, "rewarded": 90, "error": 2, "unrewarded": 1, "ready": 24, "needed": 64, "forming": 5}
    told = counts | {"groups": 3, "closes_in_s": 9.0, "left_out": {"no-variance": 40, "error": 2}}
    told |= {"ended_lately": 30, "requests": {"at_once": 12, "at_backend": 12, "waiting": 188}}
    last = {"id": 7, "status": "done", "reason": "2 steps", "metrics": {"groups_kept": 5.0}, "gate": None}
    text = shown(status(episodes=told, last_run=last))
    for part in (
        "episodes 24 of the 64 that start a run, 5 in groups that have not closed; 3 open, 90 rewarded",
        "30 ended in the last minute", "their requests: 12 at the backend, 188 wait (backend.episodes_at_once)",
        "last run: 5 groups compared", "left out: 40 no-variance, 2 error", "1 without a request for an hour",
    ):  # fmt: skip
        assert part in text, part


def test_rollouts_are_told_where_they_are_on() -> None:
    assert "rollouts" not in shown(status(rollouts=None))
    line = "sampling 4 answers to each prompt while nobody asks; 9 answers to 3 prompts so far"
    assert f"rollouts {line}" in shown(status(rollouts={"line": line}))


def test_a_run_that_passed_is_not_called_rejected() -> None:
    """Ratings that are all the same do not train, but the comments beside them do: the version goes live."""
    checks = {"contrast": {"value": 0.0, "bound": 0.0, "ok": False}, "margin": {"value": 1, "bound": 0, "ok": True}}
    done = {"id": 7, "status": "done", "reason": "2 steps", "metrics": None, "gate": checks}
    assert "its gate passed; only comments taught" in shown(status(last_run=done))
    assert gate({"gate": checks}) == "passed; only comments taught", "of a version"
    assert gate({"gate": checks, "status": "empty"}).startswith("rejected: contrast 0 ")
    good = {"gate": {"margin": checks["margin"]}}
    assert gate(good | {"back": "base_nll is 0.4, the bound is 0.3"}) == "passed, half of the way back"
    assert gate(good | {"retried": "it", "back": "it"}) == "passed at the second try, half of the way back"


def test_where_there_is_nothing_yet_a_sentence_stands_for_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_runs([])
    show_adapters({"data": []})
    out = capsys.readouterr().out
    assert "no run yet" in out and "no version yet" in out and "rlproxy status" in out and "┏" not in out


def test_runs_are_readable_in_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run: dict[str, Any] = {
        "id": 1, "status": "failed", "version": None, "samples": 31, "held": 4, "started_at": 1.0, "ended_at": 149.0,
        "reason": "the trainer was killed by the system for want of memory", "gate": None, "retried": None,
    }  # fmt: skip
    gates = {"base_nll": {"value": 0.341, "bound": 0.3, "ok": False}}
    show_runs([run, {**run, "id": 2, "status": "rejected", "gate": gates}])
    out = capsys.readouterr().out
    assert "31, 4 held" in out and "seconds" in out and "…" not in out
    for word in ("rejected", "0.341", "killed", "memory"):
        assert word in out


def test_the_reasons_of_a_runs_choices_are_readable_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    layers = "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj"
    why = "every linear layer but the head"
    show_run({
        "id": 1, "status": "done", "parent": 0, "version": 1, "reason": "it passed", "retried": None, "back": None,
        "samples": 9, "held": 0, "metrics": None, "warnings": [], "folder": "/f", "gate": None, "account": [],
        "choices": [{"name": n, "value": layers, "why": why} for n in ("layers", "gradient_checkpointing")],
    })  # fmt: skip
    out = capsys.readouterr().out
    assert "…" not in out
    for word in (*layers.split(), *why.split()):
        assert word in out


def test_a_run_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    """What a check asks, which of them had nothing to look at, and only those settings that are not the preset's."""
    checks = {
        "no_op": {"value": 0.4, "bound": 0.0001, "ok": True},
        "chance": {"value": None, "bound": 0.01, "ok": True, "note": "skipped: too few"},
    }
    show_run({
        "id": 1, "status": "done", "parent": 0, "version": 1, "reason": "it passed", "retried": None, "back": None,
        "samples": 9, "held": 0, "metrics": None, "warnings": [], "folder": "/f", "gate": checks, "account": [],
        "choices": [
            {"name": "rank", "value": 16, "why": "preset balanced"}, {"name": "held", "value": 0, "why": "few"},
        ],
    })  # fmt: skip
    out = " ".join(capsys.readouterr().out.split())
    assert "did training change anything?" in out and "– │ do the ratings show a taste" in out
    assert "rank" not in out and "held" in out
    assert "1 more settings are as the preset has them; `rlproxy runs 1 --json` lists them." in out


def test_a_cloud_needs_no_number_of_ratings() -> None:
    """Where no run ever starts nothing is said of how many start one."""
    many = {"fresh": 45, "good": 40, "bad": 5, "stale": 0, "untrainable": {}, "needed": 32, "line": "45 of 32"}
    training = {"run": None, "line": "waits: a cloud trains nothing", "progress": {}}
    text = shown(status(trains={"model": None, "line": "nothing"}, ratings=many, training=training))
    assert "45 that no run has used: 40 good, 5 bad" in text and "32" not in text


def test_nothing_is_said_twice() -> None:
    """Of a fresh home, and of the run that is under way, which is the last one, too."""
    running = {"id": 8, "status": "running", "reason": None, "metrics": None, "gate": None}
    under_way = {"run": 8, "line": "run 8, starting", "progress": {}}
    counts = {"done": 1, "captured_today": 1, "pending": 0, "partial": 0, "error": 0, "good": 0, "bad": 0}
    text = shown(status(live=0, previous=0, last_run=running, training=under_way, counts=counts, baseline=0.0))
    assert "earlier runs" not in text
    assert "m, the base model answers backend" in text and "1 whole answer, 1 today" in text
    assert "last run" not in text and "this run run 8, starting" in text
    text = shown(status(last_run={**running, "status": "failed", "reason": ""}))
    assert "last run 8, failed next run" in text


def test_how_a_rebuild_ended_is_told_until_another_run_has_something_to_tell() -> None:
    going = {"state": "under way", "line": "v2 is trained again", "runs": [7]}
    assert "forgotten v2 is trained again" in shown(status(rebuild=going))
    over = going | {"state": "over", "line": "v3 took its place"}
    assert "forgotten v3 took its place" in shown(status(rebuild=over))
    assert "v3 took its place" not in shown(status(rebuild=over | {"runs": [6]}))


def test_a_check_under_way_is_said() -> None:
    database = {"state": "checking", "line": "it is being checked", "checked_since": time.time() - 7}
    assert "it is being checked (7 s by now)" in " ".join(shown(status(database=database)).split())


def test_what_the_server_reads_is_said_beside_what_the_template_makes() -> None:
    rendering = {"known": False, "line": "another", "server": None, "weights": "<|im_start|>hi", "read": 7, "made": 9}
    tried = verdict(["it read 7", "it read 7"], 2)
    text = shown(status(match={"rendering": rendering}, rehearsal=tried, cut="it was cut"))
    assert "server: it does not tell how it renders (it read 7 tokens)" in text
    assert "weights: '<|im_start|>hi' (9 tokens)" in text
    assert "a run would refuse all: it read 7" in text and "it was cut" in text
