"""`rlproxy retrain`, as a person runs it: the plan first, then the question, then how far it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.cli.retrain.words import describe_plan
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until
from tests.proxy.cli.test_forget import at_a_terminal


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


@pytest.fixture
def base(tmp_path: Path) -> str:
    folder = tmp_path / "other-base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


async def test_it_shows_the_plan_asks_and_says_what_came_of_it(cli: Proxy, base: str) -> None:
    await rated(cli, 4)
    await until(cli, live=1)
    code, out, _ = await rlproxy(cli.home, "retrain", "--weights", base, "--dry-run")
    assert code == 0 and "4 ratings of 4 answers can train on other-base: 4 good, 0 bad" in out
    assert "1 round" in out and "No version of the new one goes live by itself" in out
    code, out, err = await rlproxy(cli.home, "retrain", "--weights", base)
    assert code == 1 and "nothing was begun" in err and (await cli.store.retraining.state()) is None
    code, said = await at_a_terminal(cli.home, "n", "retrain", "--weights", base)
    assert code == 1 and "Begin? [y/N]" in said and (await cli.store.retraining.state()) is None
    code, said = await at_a_terminal(cli.home, "y", "retrain", "--weights", base)
    assert code == 0 and "1 round made v10 on other-base" in said and "`rlproxy promote v10`" in said
    code, out, _ = await rlproxy(cli.home, "retrain")  # again: how it ended
    assert code == 0 and "made v10" in out


async def test_json_for_programs(cli: Proxy, base: str) -> None:
    code, _, err = await rlproxy(cli.home, "retrain", "--json")
    assert code == 1 and "There has been no retrain here" in err
    await rated(cli, 2)
    code, out, _ = await rlproxy(cli.home, "retrain", "--weights", base, "--dry-run", "--json")
    assert code == 0 and json.loads(out)["ratings"] == 2 and "seconds" in json.loads(out)
    code, out, _ = await rlproxy(cli.home, "retrain", "--weights", base, "--yes", "--json")
    report = json.loads(out)
    assert code == 0 and report["state"] == "over" and report["versions"] == [9]


async def test_what_makes_no_version_ends_with_1(cli: Proxy, base: str) -> None:
    await rated(cli, 2)
    cli.launcher.outcome = "rejected"
    code, out, _ = await rlproxy(cli.home, "retrain", "--weights", base, "--yes")
    assert code == 1 and "made no version" in out and "2 in rounds that the gate refused" in out
    code, _, err = await rlproxy(cli.home, "retrain", "--stop")
    assert code == 1 and "No retrain is under way" in err
    code, _, err = await rlproxy(cli.home, "retrain", "--dry-run")
    assert code == 2 and "--weights" in err


def test_a_plan_says_its_time_and_what_is_left_out() -> None:
    plan = {
        "of_line": "common", "ratings": 300, "completions": 290, "rounds": 2, "model": "new", "liked": 200,
        "disliked": 100, "stars": 9, "comments": 1, "corrections": 0, "paired": 4,
        "exclusions": {"has_image": 2, "remote_image": 1, "raw_text": 1},
    }  # fmt: skip
    text = describe_plan(plan, 7200.0)
    assert "2 rounds, about 2.0 h." in text and "3 ratings cannot train: of prompts with pictures" in text
    assert "1 comment, 0 corrections" in text and "cannot be told" in describe_plan(plan, None)
    assert "about 3 min" in describe_plan(plan, 170.0)
