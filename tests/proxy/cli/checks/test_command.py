"""`rlproxy eval` over a whole proxy: versions, captured prompts, JUnit, what is asked once, what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from scripts.harness.command import ROOT, rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until
from tests.harness.visits import Visit

CHECKS = """
[[prompt]]
name = "hello"
text = "Say hello"
tags = ["greeting"]

[[prompt]]
name = "bye"
text = "Say bye"

[[check]]
name = "says it"
kind = "regex"
pattern = "Say"
"""


@pytest.fixture
async def file(cli: Proxy, tmp_path: Path) -> Path:
    """A home with v1 live, which says no to "Say bye"."""
    await rated(cli, 4)
    await until(cli, live=1)

    def script(body: dict[str, Any]) -> str:
        last = body["messages"][-1]["content"]
        return "No." if "v1" in body["model"] and last == "Say bye" else f"You said: {last}"

    cli.backend.script = script
    path = tmp_path / "checks.toml"
    path.write_text(CHECKS)
    return path


async def test_versions_are_compared(cli: Proxy, file: Path, visit: Visit) -> None:
    junit = file.with_name("checks.xml")
    code, out, err = await rlproxy(cli.home, "eval", str(file), "--versions", "base,v1", "--junit", str(junit))
    assert code == 0, err
    assert "2/2  100 % (34–100)".replace(" %", "%") in out and "1/2  50% (9–91)" in out
    assert "v1 against the base model: better on 0, worse on 1 of 2 prompts (exact McNemar p = 1)" in out
    assert "v1 on bye: says it does not have 'Say'" in out
    assert [suite.get("failures") for suite in ElementTree.parse(junit).getroot()] == ["0", "1"]
    page = await visit.get("/versions")
    assert "Your own checks" in page and "v1 against the base model: better on 0, worse on 1 of 2 prompts" in page
    assert "Share of prompts on which all checks hold: base 100%, v1 50%" in page
    assert (await cli.get("/rl/completions"))["data"][0]["text"] != "No."  # never captured


async def test_what_was_answered_is_not_asked_again(cli: Proxy, file: Path) -> None:
    asked = len(cli.backend.requests)
    code, out, _ = await rlproxy(cli.home, "eval", str(file), "--json")
    assert code == 0 and len(cli.backend.requests) == asked + 4
    file.write_text(CHECKS.replace('pattern = "Say"', 'pattern = "No"'))  # another check of the same answers
    code, out, _ = await rlproxy(cli.home, "eval", str(file), "--json")
    summary = json.loads(out)
    assert len(cli.backend.requests) == asked + 4
    assert [version["cached"] for version in summary["versions"]] == [2, 2]
    assert [version["all"]["passed"] for version in summary["versions"]] == [0, 1]
    await rlproxy(cli.home, "eval", str(file), "--fresh")
    assert len(cli.backend.requests) == asked + 8


async def test_the_base_is_asked_with_rated_answers_as_examples(cli: Proxy, file: Path, visit: Visit) -> None:
    """The four that are rated good; the last is corrected."""
    answers = (await cli.get("/rl/completions"))["data"]
    await cli.rate(completion_id=answers[0]["id"], rating="bad", correction="Say less.")
    code, out, err = await rlproxy(cli.home, "eval", str(file), "--examples", "3", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert [each["name"] for each in summary["versions"]] == ["base", "base+examples", "v1"]
    (shown,) = [body["messages"] for body in cli.backend.requests if len(body["messages"]) == 7 and "bye" in str(body)]
    assert [message["role"] for message in shown] == ["user", "assistant"] * 3 + ["user"]
    assert shown[-2]["content"] == "Say less." and shown[-1]["content"] == "Say bye"
    assert [(c["first"], c["second"]) for c in summary["comparisons"]] == [(0, -1), (0, 1), (-1, 1)]
    asked = len(cli.backend.requests)
    code, out, _ = await rlproxy(cli.home, "eval", str(file), "--examples", "3")
    assert len(cli.backend.requests) == asked + 2  # their answers are not kept
    assert "v1 against the base with examples: better on 0, worse on 1 of 2 prompts" in out
    assert "With rated answers as examples in its prompt the base passes 2" in await visit.get("/progress")
    assert "base+examples" in await visit.get("/versions")


async def test_without_rated_answers_there_are_no_examples(cli: Proxy, file: Path) -> None:
    for answer in (await cli.get("/rl/completions"))["data"]:
        await cli.rate(completion_id=answer["id"], rating="bad")
    code, _, err = await rlproxy(cli.home, "eval", str(file), "--examples", "3")
    assert code == 1 and "no answer is liked or corrected yet" in err


async def test_strict_fails_where_the_last_version_does(cli: Proxy, file: Path) -> None:
    assert (await rlproxy(cli.home, "eval", str(file), "--versions", "base", "--strict"))[0] == 0
    assert (await rlproxy(cli.home, "eval", str(file), "--versions", "base,v1", "--strict"))[0] == 1
    assert (await rlproxy(cli.home, "eval", str(file), "--versions", "v1,base", "--strict"))[0] == 0


async def test_captured_prompts_are_those_that_never_trained(cli: Proxy, file: Path) -> None:
    await cli.post("/rl/pause")
    await rated(cli, 4, "bad")
    ratings = [
        row["ratings"][0]["id"]
        for row in (await cli.get("/rl/completions"))["data"]
        if row["text"].startswith("You said: bad")
    ]
    cli.launcher.result = {"samples": {id: {"used": number > 0} for number, id in enumerate(ratings)}}
    await cli.post("/rl/resume")
    await until(cli, live=2)
    await cli.chat("Say new")
    await cli.chat("Say aside", headers={"x-rl-turn": "side"})
    await cli.chat("Say new")
    captured = "[captured]\ncount = 50\n"
    file.write_text(f"{captured}[[check]]{CHECKS.partition('[[check]]')[2]}")
    code, out, err = await rlproxy(cli.home, "eval", str(file), "--versions", "base", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["captured"], summary["trained"]) == (
        6,
        0,
    )  # one was kept back, and four are of a run without account
    file.write_text(file.read_text().replace("count = 50", "count = 50\ntrained = true"))
    code, out, _ = await rlproxy(cli.home, "eval", str(file), "--versions", "base")
    assert "9 prompts, 9 of them captured, and 3 of those trained a version" in out
    assert out.count("(trained)") == 3
    newest = (await cli.get("/rl/completions"))["data"][0]["id"]
    assert any(newest in path.read_text() for path in (cli.home / "checks/results").iterdir())
    assert (await rlproxy(cli.home, "forget", "completion", newest, "--yes"))[0] == 0
    assert not any(newest in path.read_text() for path in (cli.home / "checks/results").iterdir())


async def test_episodes_stand_beside(cli: Proxy, file: Path) -> None:
    await cli.http.post("/rl/episodes", json={"id": "e1", "task": "t", "split": "eval"})
    await cli.http.post(
        "/s/e1/v1/chat/completions", json={"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    )
    await cli.http.post("/rl/episodes/e1/reward", json={"reward": 1})
    file.write_text(CHECKS + "\n[episodes]\n")
    code, out, err = await rlproxy(cli.home, "eval", str(file))
    assert code == 0 and "v1: 100% of 1 eval episodes succeed" in out, out + err


async def test_a_judge_of_ones_own_model(cli: Proxy, file: Path) -> None:
    file.write_text(CHECKS.replace('"regex"', '"judge"').replace("pattern", "criterion"))
    inner = cli.backend.script
    assert inner is not None
    cli.backend.script = lambda body: (
        '{"holds": false}' if body["messages"][0]["role"] == "system" else str(inner(body))
    )
    code, out, err = await rlproxy(cli.home, "eval", str(file), "--versions", "v1", "--json")
    assert code == 0, err
    assert json.loads(out)["versions"][0]["all"]["failed"] == 2


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--versions", "v9"], 1, "there is no version 'v9'"),
        (["--versions", "latest"], 1, "there is no version 'latest'"),
    ],
)
async def test_wrong_use(cli: Proxy, file: Path, options: list[str], code: int, words: str) -> None:
    status, _, err = await rlproxy(cli.home, "eval", str(file), *options)
    assert status == code and words in err


async def test_without_a_proxy_and_without_a_file(cli: Proxy, file: Path) -> None:
    code, _, err = await rlproxy(cli.home, "eval", str(file.with_name("none.toml")))
    assert code == 1 and "cannot be read" in err
    await cli.stop()
    code, _, err = await rlproxy(cli.home, "eval", str(file))
    assert code == 3 and "no rlproxy answers" in err
    await cli.start()


async def test_a_server_that_answers_nothing(cli: Proxy, file: Path) -> None:
    cli.backend.mood = "error"
    code, _, err = await rlproxy(cli.home, "eval", str(file), "--versions", "v1")
    assert code == 1 and "no prompt was answered" in err


async def test_it_goes_on_after_kill_9(cli: Proxy, file: Path) -> None:
    prompts = "".join(f'[[prompt]]\nname = "p{n}"\ntext = "Say {n}"\n' for n in range(12))
    file.write_text(prompts + "[[check]]" + CHECKS.partition("[[check]]")[2])
    answers = cli.home / "checks" / "answers" / "given"
    inner, before = cli.backend.script, len(cli.backend.requests)
    assert inner is not None

    def held_after_six(body: dict[str, Any]) -> str:
        if len(cli.backend.requests) - before >= 6:
            cli.backend.hold.clear()  # the answers after this one wait
        return inner(body)

    cli.backend.script = held_after_six
    command = [
        sys.executable,
        "-m",
        "proxy.cli",
        "eval",
        str(file),
        "--versions",
        "v1",
        "--at-once",
        "1",
        "--home",
        str(cli.home),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(60):
        while not answers.exists() or len(list(answers.glob("*.json"))) < 6:
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    cli.backend.script, before = inner, len(cli.backend.requests)
    cli.backend.hold.set()
    code, out, err = await rlproxy(cli.home, "eval", str(file), "--versions", "v1", "--json")
    assert code == 0, err
    version = json.loads(out)["versions"][0]
    assert version["cached"] == 6 and version["all"]["passed"] == 12 and len(cli.backend.requests) == before + 6
