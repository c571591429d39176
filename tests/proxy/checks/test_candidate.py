"""`gate.checks`: a candidate that fails one does not go live, and its ratings are fresh again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.checks import results
from proxy.core.start_errors import CannotStart
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until

CHECKS = """
[[prompt]]
name = "hello"
text = "Say hello"

[[prompt]]
name = "bye"
text = "Say bye"

[[check]]
name = "says it"
kind = "regex"
pattern = "Say"

[[check]]
name = "polite"
kind = "judge"
criterion = "It is polite."

[captured]
count = 3
"""


def answers_of(version: str, text: str) -> Any:
    """One version says this to "Say bye", and everything else what it was told."""

    def script(body: dict[str, Any]) -> str:
        last = body["messages"][-1]["content"]
        return text if version in body["model"] and last == "Say bye" else f"You said: {last}"

    return script


@pytest.fixture
async def checked(proxy: Proxy, tmp_path: Path) -> Proxy:
    file = tmp_path / "checks.toml"
    file.write_text(CHECKS)
    await proxy.stop()
    await proxy.start(gate__checks=str(file))
    return proxy


async def test_a_candidate_that_fails_is_refused_with_a_sentence(checked: Proxy) -> None:
    checked.backend.script = answers_of("v1", "No.")
    await rated(checked, 4)
    status = await until(checked, ended="rejected")
    reason = status["last_run"]["reason"]
    assert reason == (
        "v1 fails the checks of checks.toml: 'says it' on 1 of 2 prompts ('bye': does not have 'Say'). Its ratings are "
        "fresh again; `rlproxy promote v1` takes it all the same."
    )
    assert (status["live"], status["ratings"]["fresh"], status["baseline"]) == (0, 4, 0.0)
    (summary,) = results.recent(checked.home, 9)
    assert summary["versions"][0]["all"]["passed"] == 1
    assert (await checked.get("/rl/adapters"))["data"][0]["withdrawn"] == reason
    assert (await checked.post("/rl/promote/v1"))[1]["live"] == 1


async def test_a_candidate_that_passes_goes_live(checked: Proxy) -> None:
    checked.backend.script = answers_of("v9", "")
    await rated(checked, 4)
    await until(checked, live=1)
    asked = [body for body in checked.backend.requests if body["messages"][-1]["content"] in ("Say hello", "Say bye")]
    assert {body["model"].rpartition("@")[2] for body in asked} == {"v1"} and len(asked) == 2
    assert (await checked.get("/rl/completions"))["data"][0]["text"] != "You said: Say bye"  # never captured


async def test_a_share_may_fail_where_the_file_says_so(checked: Proxy, tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text(CHECKS.replace('"Say"', '"Say"\nat_least = 0.5'))  # read anew each time
    checked.backend.script = answers_of("v1", "No.")
    await rated(checked, 4)
    await until(checked, live=1)


async def test_what_cannot_be_checked_waits(checked: Proxy, tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text("not a file of checks")
    await rated(checked, 4)
    status = await until(checked, ended="done")
    assert status["live"] == 0 and status["ratings"]["fresh"] == 0
    await checked.stop()
    (tmp_path / "checks.toml").write_text(CHECKS)
    await checked.start(gate__checks=str(tmp_path / "checks.toml"))  # tried again
    await until(checked, live=1)


async def test_a_start_with_a_file_that_cannot_be_used_is_refused(proxy: Proxy, tmp_path: Path) -> None:
    await proxy.stop()
    file = tmp_path / "judged.toml"
    file.write_text(CHECKS.replace('"regex"', '"judge"').replace("pattern", "criterion"))
    with pytest.raises(CannotStart, match="the gate can make"):
        await proxy.start(gate__checks=str(file))
    await proxy.store.close()
    await proxy.start()


async def test_the_trainer_is_not_told_of_the_file(checked: Proxy) -> None:
    checked.launcher.hold = True
    await rated(checked, 4)
    while not checked.launcher.started:
        await asyncio.sleep(0.01)
    spec = json.loads((checked.launcher.started[0] / "run.json").read_text())
    assert "checks" not in spec["gate"] and "margin_slack" in spec["gate"]
