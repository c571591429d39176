"""The doctor's checks of this machine: memory, keys, agents; and of the template."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import load
from proxy.cli.agents import connection
from proxy.cli.agents.catalog import AGENTS, AgentLink, Home
from proxy.cli.agents.drift import list_connections
from proxy.cli.doctor import checks, machine_checks
from proxy.cli.doctor.facts import DoctorFacts, gather
from proxy.core.address_file import ADDRESS_FILE
from scripts.harness.in_process import Proxy
from trainer.launch import PriorityState

URL = "http://127.0.0.1:8484"


def facts(home: Path, environ: dict[str, str] | None = None, **changes: Any) -> DoctorFacts:
    settings = load({"home": home}, environ=environ or {}).settings
    return replace(DoctorFacts(settings, URL, None, None, True, None, None, None, None, 100.0), **changes)


@pytest.mark.parametrize(
    ("memory_gb", "gpu_gb", "environ", "state", "says"),
    [
        (8.0, None, {}, "ok", "8.0 GB free, a run starts with 2"),
        (1.0, None, {}, "note", "1.0 GB free"),
        (8.0, 3.0, {}, "ok", "3.0 GB free on the GPU"),
        (8.0, 3.0, {"RLPROXY_TRAIN__MIN_FREE_GPU_GB": "12"}, "note", "12 are asked for"),
        (8.0, 0.0, {"RLPROXY_TRAIN__MIN_FREE_GPU_GB": "12"}, "note", "0.0 GB free on the GPU"),
        (8.0, None, {"RLPROXY_TRAIN__MIN_FREE_GPU_GB": "12"}, "ok", "8.0 GB"),
        (None, None, {}, "unknown", "not measured"),
    ],
)
def test_memory(
    tmp_path: Path, memory_gb: float | None, gpu_gb: float | None, environ: dict[str, str], state: str, says: str
) -> None:
    check = machine_checks.memory(facts(tmp_path, environ, memory_gb=memory_gb, gpu_gb=gpu_gb))
    assert check.state == state and says in check.line
    assert (check.fix is not None) == (state == "note")


def test_keys_in_words(tmp_path: Path) -> None:
    def state(*rows: dict[str, Any], fixed: tuple[str, ...] = (), needed: bool = True) -> dict[str, Any]:
        return {"data": rows, "needed": needed, "fixed": fixed}

    use = {"name": "a", "role": "use", "revoked_at": None}
    boss, gone = {**use, "role": "admin"}, {**use, "role": "admin", "revoked_at": 1.0}
    assert machine_checks.keys(facts(tmp_path)).state == "unknown"
    assert "none is asked for: only this" in machine_checks.keys(facts(tmp_path, keys=state(needed=False))).line
    check = machine_checks.keys(facts(tmp_path, keys=state(gone)))
    assert check.state == "note" and "all are revoked" in check.line and "`rlproxy keys off`" in str(check.fix)
    check = machine_checks.keys(facts(tmp_path, keys=state(use, boss)))
    assert (check.state, check.line) == ("ok", "2 handed out, 1 of them admin's")
    check = machine_checks.keys(facts(tmp_path, keys=state(use)))
    assert check.state == "note" and "--role admin" in str(check.fix)
    check = machine_checks.keys(facts(tmp_path, keys=state(use, fixed=("server.admin_key",))))
    assert check.state == "ok" and "server.admin_key is set in the settings or the environment" in check.line


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    file = tmp_path / "rlproxy.toml"
    file.write_text('[backend]\napi_key = "hunter2"\n')
    file.chmod(0o644)
    none = {"data": [], "needed": False, "fixed": []}
    check = machine_checks.keys(facts(tmp_path, keys=none))
    assert check.state == "problem" and check.fix == f"chmod 600 {file}" and "hunter2" not in check.line
    file.chmod(0o600)
    assert machine_checks.keys(facts(tmp_path, keys=none)).state == "ok"


async def test_the_keys_of_a_running_proxy(cli: Proxy) -> None:
    async with cli.http.post("/rl/keys", json={"name": "eve", "role": "rate"}) as response:
        assert response.status == 201
    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "key": cli.local}))
    found = await asyncio.to_thread(gather, load({"home": cli.home}, environ={}).settings)
    assert found.keys is not None and found.keys["needed"] and found.keys["data"][0]["name"] == "eve"


def test_agents_that_went_astray(tmp_path: Path) -> None:
    person, home = tmp_path / "person", tmp_path / "home"
    person.mkdir()
    assert "none is connected" in machine_checks.agents(facts(home)).line
    for name in ("claude-code", "codex"):
        plan = AGENTS[name](AgentLink(URL, "m", None), Home(person, {}))
        connection.connect(home, name, connection.connecting(plan, None), None)
    check = machine_checks.agents(facts(home, agents=list_connections(home, URL)))
    assert (check.state, check.line) == ("ok", "claude-code, codex point here")
    check = machine_checks.agents(facts(home, agents=list_connections(home, "http://127.0.0.1:9000")))
    assert check.state == "note" and "claude-code: it asks port 8484" in check.line
    assert check.fix is not None and check.fix.startswith("`rlproxy connect claude-code` and `rlproxy connect codex`")
    config = person / ".codex" / "config.toml"
    config.write_text(config.read_text().replace('model_provider = "rlproxy"', 'model_provider = "openai"'))
    claude = person / ".claude" / "settings.json"
    claude.write_text(json.dumps(json.loads(claude.read_text()) | {"theme": "dark"}))
    one, two = list_connections(home, URL)
    assert one.problem is None, "what the person added is theirs"
    assert two.problem == f"model_provider in {config} was changed or removed since it was connected"
    config.write_text("[[[")
    assert "model" in str(list_connections(home, URL)[1].problem)
    config.unlink()
    assert "model_provider in" in str(list_connections(home, URL)[1].problem)
    (home / "agents" / "codex.json").write_text("{")
    assert "cannot be read" in str(list_connections(home, URL)[1].problem)
    check = machine_checks.agents(facts(home, agents=list_connections(home, URL)))
    assert "claude-code in order" in check.line


SAME: dict[str, Any] = {"state": "same", "line": "the server runs what trains", "stops": False}
OTHER: dict[str, Any] = {"state": "other", "line": "it is a llama, not a qwen2", "stops": True}
RENDERS: dict[str, Any] = {"known": True, "line": "it renders as they do", "server": None, "weights": None}
APART: dict[str, Any] = {"server": "### hi", "weights": "<user>hi", "read": 20, "made": 40}


@pytest.mark.parametrize(
    ("match", "state", "says"),
    [
        (SAME | {"rendering": RENDERS}, "ok", "renders"),
        (SAME | {"rendering": RENDERS | APART}, "ok", "weights: '<user>hi'"),
        (SAME | {"rendering": RENDERS | {"known": False, "line": "tells neither"}}, "note", "tells neither"),
        (OTHER | {"rendering": RENDERS | {"known": False, "line": "it read 20"}}, "problem", "it read 20"),
        (OTHER | {"stops": False, "rendering": RENDERS | {"known": False, "line": "it read 20"}}, "note", "it read 20"),
        (OTHER | {"rendering": RENDERS}, "ok", "renders"),
        (OTHER | {"rendering": None}, "unknown", "models differ"),
        ({"state": "unknown", "line": "could not be checked", "rendering": None}, "note", "could not"),
        (
            {"state": "unasked", "line": "when the first rating has come", "stops": False, "rendering": None},
            "unknown",
            "first rating",
        ),
    ],
)
def test_the_template(tmp_path: Path, match: dict[str, Any], state: str, says: str) -> None:
    check = checks.template(
        facts(tmp_path, status={"match": match, "rehearsal": {"refused": 0}, "backend": {"adapters": True}})
    )
    assert check.state == state and says in check.line
    assert (check.fix is not None) == ((match["rendering"] or {}).get("line") == "it read 20")
    assert checks.template(facts(tmp_path)).state == "unknown"


STRONG = PriorityState(("nice 19", "autogroup 19"))
WEAK = PriorityState(("nice 19",), "this counts within the control group / only")
NONE = PriorityState((), "train.nice = 0: a run takes as much")
REMOTE = {"RLPROXY_BACKEND__KIND": "vllm", "RLPROXY_BACKEND__URL": "http://gpu.example:8000"}


@pytest.mark.skipif(sys.platform != "linux", reason="runs stand still on Linux")
@pytest.mark.parametrize(
    ("standing", "environ", "state", "says"),
    [
        (STRONG, {}, "ok", "a run steps back: nice 19, autogroup 19; it stands still while requests are answered, 5"),
        (STRONG, REMOTE, "ok", "a run steps back: nice 19, autogroup 19"),
        (WEAK, {}, "ok", "it stands still while requests are answered, 5 s at a stretch"),
        (WEAK, {"RLPROXY_TRAIN__STAND_STILL_S": "0"}, "note", "within the control group / only"),
        (NONE, {"RLPROXY_TRAIN__NICE": "0"}, "note", "takes as much"),
        (None, {}, "unknown", "not measured"),
    ],
)
def test_who_has_the_processor_first(
    tmp_path: Path, standing: PriorityState | None, environ: dict[str, str], state: str, says: str
) -> None:
    check = machine_checks.priority(facts(tmp_path, environ, standing=standing))
    assert check.state == state and says in check.line
    assert (check.fix is not None) == (state == "note")
