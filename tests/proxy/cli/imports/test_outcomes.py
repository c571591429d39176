"""Rewards out of files: what is checked, given and counted, against a whole proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proxy.cli.imports.outcomes import group_name
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.runs import until
from tests.proxy.cli.imports.test_verifiers import recorded


def traces(folder: Path, *rows: dict[str, Any]) -> None:
    """One trace a line, of one run and task, with the recorded fields but for these."""
    lines = []
    for row in rows:
        line = recorded()[0]
        line["traces"][0] |= row
        lines.append(json.dumps(line) + "\n")
    (folder / "traces.jsonl").write_text("".join(lines))


def worth(id: str, reward: float) -> dict[str, Any]:
    return {"id": id, "rewards": {"right": {"score": reward, "weight": 1.0}}}


async def ask(proxy: Proxy, *sessions: str) -> None:
    for session in sessions:
        assert (await proxy.chat("one", headers={"X-Session-ID": session})).status == 200


async def test_what_was_captured_is_rewarded_once_and_all_else_is_named(cli: Proxy, tmp_path: Path) -> None:
    await cli.stop()
    await cli.start(train__start_at_episodes=2, train__group_size=8)
    from proxy.core.address_file import ADDRESS_FILE

    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "pid": 1}))
    await ask(cli, "t1", "t2", "t3")
    traces(
        tmp_path, worth("t1", 1), worth("t2", 0), {"id": "t3", "ok": False, "errors": []}, worth("elsewhere", 1),
        worth("huge", 3), {"id": "none", "rewards": {}}, worth("twice", 1), worth("twice", 0), worth("t1", 1),
    )  # fmt: skip
    with (tmp_path / "traces.jsonl").open("a") as file:
        file.write("{broken\n")
    code, out, err = await rlproxy(cli.home, "import", "verifiers", str(tmp_path), "--dry-run")
    assert code == 1 and out.startswith("3 episodes would be rewarded, 0 had their reward before; 1 group, 1 episode")
    assert "--scale 0.333" in err and "line 10: the line is not JSON" in err and "more than once, and differs" in err
    assert (await cli.get("/rl/episodes"))["data"] == []
    code, out, _ = await rlproxy(cli.home, "import", "verifiers", str(tmp_path), "--json")
    found = json.loads(out)
    assert code == 1 and (found["stored"], found["errors"], found["known"], found["groups"]) == (3, 1, 0, 1)
    assert {(one["episode"], one["kind"]) for one in found["left_out"]} == {
        ("elsewhere", "not-captured"), ("huge", "refused"), ("none", "no-reward"), ("twice", "twice"), (None, "broken"),
    }  # fmt: skip
    # The group has closed with the three that are here, though eight make a group otherwise.
    assert (await until(cli, live=1))["last_run"]["samples"] == 2
    traces(tmp_path, worth("t1", 0.5), worth("t2", 0))
    code, out, err = await rlproxy(cli.home, "import", "verifiers", str(tmp_path))
    assert code == 1 and "0 episodes rewarded, 1 had their reward before" in out and "run 1 has taken it" in err
    assert (await cli.get("/rl/episodes/t1"))["reward"] == 1


async def test_a_larger_scale_and_episodes_that_only_measure(cli: Proxy, tmp_path: Path) -> None:
    await ask(cli, "t1", "t2")
    traces(tmp_path, worth("t1", 10), worth("t2", -5))
    code, _, err = await rlproxy(
        cli.home, "import", "verifiers", str(tmp_path), "--scale", "0.1", "--split", "eval", "--reward", "right"
    )
    assert code == 0, err
    found = {one["id"]: one for one in (await cli.get("/rl/episodes"))["data"]}
    assert (found["t1"]["reward"], found["t2"]["reward"]) == (1.0, -0.5)
    assert {one["split"] for one in found.values()} == {"eval"}
    code, _, err = await rlproxy(cli.home, "import", "verifiers", str(tmp_path), "--scale", "0.1")
    assert code == 0, err  # said again without the split: the same
    for wrong in (("--split", "test"), ("--scale", "0"), ("--scale", "nan")):
        assert (await rlproxy(cli.home, "import", "verifiers", str(tmp_path), *wrong))[0] == 2
    assert (await rlproxy(cli.home, "import", "export.jsonl", "--dry-run"))[0] == 2


async def test_nothing_here_says_what_is_missing(cli: Proxy, tmp_path: Path) -> None:
    traces(tmp_path, worth("t1", 1))
    code, _, err = await rlproxy(cli.home, "import", "verifiers", str(tmp_path))
    assert code == 1 and "None of them was captured here" in err
    code, _, err = await rlproxy(cli.home, "import", "harbor", str(tmp_path))
    assert code == 1 and "no trial of Harbor lies below" in err


def test_a_groups_name_is_what_the_proxy_takes() -> None:
    assert group_name("run", "task") == "run:task"
    for odd in ("x" * 300, "a\nb", "\ud800"):
        assert len(group_name(odd)) == 64
    assert group_name("a\nb") != group_name("a\nc")
