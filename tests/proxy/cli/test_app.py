"""The `rlproxy` command as a person runs it: a process of its own against a running proxy."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls
from tests.harness.runs import rated, until
from tests.proxy.web.test_control import GATE

ROOT = Path(__file__).resolve().parents[3]


async def test_rate_and_undo(cli: Proxy) -> None:
    id = (await cli.chat("a")).headers["x-rl-completion-id"]
    code, out, _ = await rlproxy(cli.home, "bad", "too", "long", "--json")
    rating = json.loads(out)
    assert code == 0 and rating["completion_id"] == id and (rating["value"], rating["comment"]) == (-1.0, "too long")
    code, out, _ = await rlproxy(cli.home, "good", "--id", id)
    assert code == 0 and "replaces your earlier" in out
    code, out, _ = await rlproxy(cli.home, "undo")
    assert code == 0 and id in out
    code, _, err = await rlproxy(cli.home, "undo")
    assert code == 1 and "no rating to undo" in err


async def test_a_rating_while_the_answer_streams(cli: Proxy) -> None:
    await (await cli.chat("before")).read()
    cli.backend.pause_s = 30.0
    stream = await cli.chat("a", stream=True)
    got = b""
    while b"You" not in got:
        got += await stream.content.readany()
    id = stream.headers["x-rl-completion-id"]
    code, out, _ = await rlproxy(cli.home, "bad")
    assert (code, out.splitlines()[0]) == (0, f"rated bad: “You”, still streaming ({id})")
    stream.close()


async def test_status_in_words_and_as_json(cli: Proxy) -> None:
    code, out, _ = await rlproxy(cli.home, "status")
    assert code == 0 and f"{cli.url}/v1" in out and "0 of 4 fresh ratings" not in out and "no fresh ratings" in out
    code, out, _ = await rlproxy(cli.home, "status", "--json")
    assert json.loads(out)["model"] == "fake"


async def test_its_version(tmp_path: Path) -> None:
    from importlib.metadata import version

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", "--version", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0 and out.decode() == f"rlproxy {version('rlproxy')}\n"


async def test_learning_by_hand(cli: Proxy) -> None:
    code, _, err = await rlproxy(cli.home, "train")
    assert code == 1 and "no fresh ratings" in err
    assert (await rlproxy(cli.home, "pause"))[0] == 0
    await cli.chat("a")
    await cli.rate(completion_id="last", rating="good")
    code, _, err = await rlproxy(cli.home, "train")
    assert code == 1 and "paused" in err
    assert (await rlproxy(cli.home, "resume"))[0] == 0
    assert (await rlproxy(cli.home, "train", "--json"))[0] == 0
    async for _ in Polls():
        if (await cli.get("/rl/status"))["live"] == 1:
            break
    code, out, _ = await rlproxy(cli.home, "adapters")
    assert code == 0 and "v1" in out and "live" in out
    code, out, _ = await rlproxy(cli.home, "runs", "--json")
    assert [r["status"] for r in json.loads(out)] == ["done"]
    code, out, _ = await rlproxy(cli.home, "runs")
    assert code == 0 and "done" in out
    code, out, _ = await rlproxy(cli.home, "rollback")
    assert code == 0 and "base model is live" in out
    code, out, _ = await rlproxy(cli.home, "promote", "v1")
    assert code == 0 and "v1 is live" in out
    assert (await rlproxy(cli.home, "reset"))[0] == 0
    assert (await rlproxy(cli.home, "promote", "v9"))[0] == 1


async def test_the_gate_in_one_line_and_a_run_in_full(cli: Proxy) -> None:
    cli.launcher.outcome = "rejected"
    back = "base_nll is 0.4, the bound is 0.3"
    cli.launcher.result = {"gate": GATE, "retried": "base_nll is 0.5, the bound is 0.3", "back": back, "samples": {}}
    cli.launcher.progress = [
        {"event": "choice", "name": "held", "value": 4, "why": "of 32 samples"},
        {"event": "warning", "message": "look out"},
    ]
    for rating in ("good", "bad", "good", "bad"):
        id = (await cli.chat(rating)).headers["x-rl-completion-id"]
        _, given = await cli.rate(completion_id=id, rating=rating)
        flags = {"flags": ["truncated"]} if rating == "bad" else {}
        cli.launcher.result["samples"][given["id"]] = {"used": True, "cause": None, "tokens": 3, **flags}
    await until(cli, ended="rejected")
    code, out, _ = await rlproxy(cli.home, "runs")
    assert code == 0 and out.count("base_nll") == 1 and "rejected: base_nll 0.341 > 0.3" in out
    code, out, _ = await rlproxy(cli.home, "runs", "1")
    assert code == 0 and "margin" in out and "0.341" in out and "1 liked and 1 disliked" in out
    assert "dropped by rlproxy: base_nll is 0.5" in out and "too far: base_nll is 0.4" in out
    assert "look out" in out and "of 32 samples" in out
    assert out.count("truncated") == 2 and id in out
    code, out, _ = await rlproxy(cli.home, "runs", "1", "--json")
    assert code == 0 and json.loads(out)["gate"] == GATE
    code, _, err = await rlproxy(cli.home, "runs", "7")
    assert code == 1 and "no run 7" in err
    cli.launcher.outcome, cli.launcher.result = "passed", {"gate": {"margin": GATE["margin"]}}
    for _ in range(4):
        await cli.chat("more")
        await cli.rate(completion_id="last", rating="good")
    await until(cli, live=1)
    assert "passed" in (await rlproxy(cli.home, "runs"))[1]
    assert "passed" in (await rlproxy(cli.home, "adapters"))[1]


async def test_export(cli: Proxy, tmp_path: Path) -> None:
    await cli.chat("one")
    await cli.chat("two")
    code, out, _ = await rlproxy(cli.home, "export")
    assert code == 0 and len([json.loads(line) for line in out.splitlines()]) == 2
    code, out, _ = await rlproxy(cli.home, "export", "--json")
    assert len(json.loads(out)) == 2
    target = tmp_path / "out.jsonl"
    code, _, err = await rlproxy(cli.home, "export", "--output", str(target), "--rated")
    assert code == 0 and target.read_text() == "" and "0 completions" in err
    code, _, err = await rlproxy(cli.home, "export", "-o", str(target))
    assert code == 1 and "is there already" in err and target.read_text() == ""
    code, _, err = await rlproxy(cli.home, "export", "-o", str(target), "--force")
    assert code == 0 and len(target.read_text().splitlines()) == 2


@pytest.mark.parametrize("day", ["0001-01-01", "1969-12-31", "1970-01-01"])
async def test_since_a_day_before_all_clocks_is_since_ever(cli: Proxy, day: str) -> None:
    await cli.chat("one")
    code, out, err = await rlproxy(cli.home, "export", "--since", day, TZ="Asia/Tokyo")
    assert code == 0 and len(out.splitlines()) == 1, err
    code, out, err = await rlproxy(cli.home, "export", "--until", day, TZ="Asia/Tokyo")
    assert (code, out) == (0, ""), err
    code, _, err = await rlproxy(cli.home, "rescore", "--since", day, TZ="Asia/Tokyo")
    assert code == 1 and "No code of yours is set" in err


async def test_no_proxy_and_wrong_use(tmp_path: Path) -> None:
    code, _, err = await rlproxy(tmp_path, "status", RLPROXY_SERVER__PORT="1")
    assert code == 3 and "rlproxy serve" in err
    assert (await rlproxy(tmp_path, "frobnicate"))[0] == 2
    code, _, err = await rlproxy(tmp_path, "status", RLPROXY_SERVER__PROT="1")
    assert code == 2 and "server.port" in err


async def test_config_show(tmp_path: Path) -> None:
    (tmp_path / "rlproxy.toml").write_text("[server]\nport = 9999\n")
    secret = {"RLPROXY_SERVER__ADMIN_KEY": "hunter2"}
    code, out, _ = await rlproxy(tmp_path, "config", "show", "--json", **secret)
    rows = {row["key"]: row for row in json.loads(out)}
    assert code == 0 and rows["server.port"]["value"] == "9999" and "rlproxy.toml" in rows["server.port"]["source"]
    assert rows["server.admin_key"]["source"] == "env RLPROXY_SERVER__ADMIN_KEY" and "hunter2" not in out
    assert (await rlproxy(tmp_path, "config", "show"))[0] == 0


async def test_help_imports_nothing_heavy() -> None:
    """What makes `--help` quick: it is a promise about imports, so it can be tested without a clock."""
    code = "import sys; import proxy.cli; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    loaded = out.decode()
    for heavy in ("torch", "transformers", "aiohttp", "pydantic", "openai", "aiosqlite", "asyncio", "rich", "store"):
        assert f"'{heavy}'" not in loaded


async def test_an_undo_says_what_learned_from_it(cli: Proxy) -> None:
    await rated(cli, 4)
    await until(cli, live=1)
    code, out, _ = await rlproxy(cli.home, "undo")
    assert code == 0 and "v1 learned from it, and stays so: `rlproxy rollback` goes back a version" in out
    await cli.chat("more")
    await rlproxy(cli.home, "good")
    code, out, _ = await rlproxy(cli.home, "undo", "--json")
    assert code == 0 and json.loads(out)["trained"] == []
