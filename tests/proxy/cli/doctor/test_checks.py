"""`rlproxy doctor` on good and bad days: what it finds, what it says to do, how it exits."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import load
from proxy.cli.doctor import checks as doctor
from proxy.cli.doctor.checks import DoctorCheck, DoctorFacts, examine, gather, holder
from proxy.cli.tables import show_checks
from proxy.core.address_file import ADDRESS_FILE
from proxy.training.rehearsal import UNTRIED, shares, verdict
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.copies import encryption
from store.file import db_key
from store.store import Store

WITH_PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]


async def facts_of(proxy: Proxy) -> DoctorFacts:
    return await asyncio.to_thread(gather, load({"home": proxy.home}, environ={}).settings)


async def found(proxy: Proxy) -> dict[str, DoctorCheck]:
    return {check.name: check for check in examine(await facts_of(proxy))}


async def test_all_is_well(cli: Proxy) -> None:
    await cli.chat("x")
    code, out, _ = await rlproxy(cli.home, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert code == 0 and len(checks) == len(doctor.CHECKS)
    aside = ("training", "exactness", "disk", "memory", "base", "template", "prompts")
    assert {c["state"] for name, c in checks.items() if name not in aside} == {"ok"}
    assert {checks[name]["state"] for name in ("base", "template", "prompts")} == {"unknown"}, "nobody has looked yet"
    assert checks["proxy"]["line"] == f"answers at {cli.url}"
    assert checks["backend"]["line"] == f"vllm at {cli.backend.url}"
    assert checks["model"]["line"] == "fake, the base model answers"
    assert checks["formats"]["line"].startswith("native: chat, completions, responses, messages; translated: ollama")
    assert f"held by process {os.getpid()}, which is this proxy" in checks["data folder"]["line"]
    training = checks["training"]
    assert (training["state"], training["line"]) == ("ok", "waits for ratings: there are no fresh ratings")
    code, out, _ = await rlproxy(cli.home, "doctor")
    lines = out.splitlines()
    folded = len(doctor.CHECKS) - 1  # base and template are not known for one reason
    assert code == 0 and sum(line.startswith(("✓", "!", "?")) for line in lines) == folded
    assert all(line.startswith(("✓", "!", "?")) or line.strip().startswith("→") for line in lines)


async def test_encryption_there_or_not(tmp_path: Path) -> None:
    def check(**env: str) -> DoctorCheck:
        settings = load({"home": tmp_path, "server.port": 1}, environ=env).settings
        return doctor.encryption(gather(settings))

    file = tmp_path.parent / f"{tmp_path.name}.key"
    key = {"RLPROXY_STORE__KEY_FROM": f"file:{file}"}
    assert check().state == "ok" and "is not there" in check(**key).line
    made, _ = db_key.find_or_make(f"file:{file}", tmp_path)
    assert check(**key).state == "ok"
    await (await Store.open(tmp_path)).close()
    assert check().state == "ok" and "run `rlproxy encrypt`" in (check(**key).fix or "")
    encryption.encrypt(tmp_path, made, lambda *_: None)
    assert check(**key).state == "ok" and check().state == "problem"
    file.chmod(0o644)
    assert f"chmod 600 {file}" in check(**key).line


async def test_no_proxy(tmp_path: Path) -> None:
    code, out, _ = await rlproxy(tmp_path / "home", "doctor", "--json", RLPROXY_SERVER__PORT="1")
    checks = {check["name"]: check for check in json.loads(out)}
    assert code == 3 and checks["proxy"]["state"] == "problem" and "rlproxy serve" in checks["proxy"]["line"]
    assert checks["data folder"]["state"] == "ok" and checks["disk"]["state"] != "unknown"
    assert checks["backend"]["state"] == checks["training"]["state"] == "unknown"
    assert not (tmp_path / "home").exists(), "a doctor changes nothing"


async def test_a_process_that_holds_the_folder_and_does_not_answer(cli: Proxy) -> None:
    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
    check = (await found(cli))["data folder"]
    assert check.state == "problem" and f"process {os.getpid()}" in check.line and "kill" in (check.fix or "")


async def test_a_folder_of_somebody_else(cli: Proxy, tmp_path: Path) -> None:
    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "pid": 1}))
    assert (await found(cli))["data folder"].state == "note"
    port = int(cli.url.rpartition(":")[2])
    facts = await asyncio.to_thread(
        gather, load({"home": tmp_path / "other", "server.port": port}, environ={}).settings
    )
    check = doctor.proxy(facts)
    assert check.state == "problem" and f"serves {cli.home}, not {tmp_path / 'other'}" in check.line
    assert doctor.data_folder(facts).state == "ok" and not (tmp_path / "other").exists()


async def test_who_holds_a_folder(cli: Proxy, tmp_path: Path) -> None:
    assert holder(cli.home) == os.getpid() and holder(tmp_path) is None
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    (tmp_path / "rlproxy.lock").write_text(f"{ended.pid}\n")
    assert holder(tmp_path) is None
    (tmp_path / "rlproxy.lock").write_text(f"{os.getpid()}\n")
    assert holder(tmp_path) == os.getpid()
    os.utime(tmp_path / "rlproxy.lock", (1, 1))  # taken long before this process began: it was another one's number
    assert holder(tmp_path) is None


async def test_a_backend_that_is_gone(cli: Proxy) -> None:
    await cli.backend.stop()
    code, out, _ = await rlproxy(cli.home, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert code == 1 and checks["backend"]["state"] == "problem" and "does not answer" in checks["backend"]["line"]
    assert "backend.url" in checks["backend"]["fix"] and checks["model"]["state"] == "unknown"
    assert checks["proxy"]["state"] == checks["capture"]["state"].replace("note", "ok") == "ok"


async def test_a_model_that_is_not_served(cli: Proxy) -> None:
    facts = await facts_of(cli)
    check = doctor.model(replace(facts, models=("other",)))
    assert (
        check.state == "problem"
        and "does not serve fake; it has other" in check.line
        and "backend.model" in str(check.fix)
    )


async def test_a_wrong_key(cli: Proxy) -> None:
    await cli.stop()
    await cli.start(server__api_key="secret", server__admin_key="boss")
    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "pid": os.getpid()}))
    code, out, _ = await rlproxy(cli.home, "doctor", "--json", RLPROXY_SERVER__ADMIN_KEY="other")
    checks = {check["name"]: check for check in json.loads(out)}
    assert code == 1 and "needs a key" in checks["proxy"]["line"] and "ADMIN_KEY" in checks["proxy"]["fix"]
    code, out, _ = await rlproxy(cli.home, "doctor", RLPROXY_SERVER__ADMIN_KEY="boss")
    assert code == 0 and "boss" not in out


async def test_what_is_native_and_inexact_and_how_it_becomes_exact(cli: Proxy) -> None:
    check = (await found(cli))["exactness"]
    assert check.state == "note" and "but those in messages" in check.line
    assert check.fix is not None and check.fix.startswith('backend.translate = ["messages"]')
    await cli.stop()
    await cli.start(backend__translate=["messages"])
    (cli.home / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "pid": os.getpid()}))
    checks = await found(cli)
    assert checks["exactness"] == DoctorCheck("exactness", "ok", "token ids and log-probs come with every answer")
    assert "translated: messages, ollama" in checks["formats"].line


async def test_why_nothing_trains(cli: Proxy) -> None:
    await cli.chat("x")
    await cli.rate(completion_id="last", rating="good")
    check = (await found(cli))["training"]
    assert "1 of 4 fresh ratings (train.start_at)" in check.line and "`rlproxy train`" in check.line
    await cli.post("/rl/pause")
    check = (await found(cli))["training"]
    assert "paused" in check.line and check.fix == "`rlproxy resume`"
    response = await cli.http.post("/v1/chat/completions", json={"model": "fake", "messages": WITH_PICTURE})
    await cli.rate(completion_id=response.headers["x-rl-completion-id"], rating="good")
    check = (await found(cli))["ratings"]
    assert check.line == "1 fresh (no run has used them): 1 good, 0 bad; 1 will not train (remote image: 1)"


SHORT = {"id": 3, "status": "failed", "reason": "CUDA out of memory", "ended_at": 1.0, "folder": "/r3"}
EMPTY = {"waits_for": "no fresh ratings", "paused": False, "line": "waits: no fresh ratings"}
WAITS = {"waits_for": "1.0 GB of memory free, 2 GB are needed (train.min_free_memory_gb)", "paused": False,
         "share_gpu": False}  # fmt: skip
COMPARES = {"waits_for": "v1 is compared with the base model, and the ratings wait until that experiment ends; "
            "`rlproxy experiment stop` ends it", "paused": False}  # fmt: skip


def status(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"backend": {}, "ratings": {}, "last_run": None, "problem": None, "counts": {}}
    return found | changes


def counted(ids: int | None, **backend: Any) -> dict[str, Any]:
    """Of a hundred tokens so many ids; None: no answers yet."""
    known = None if ids is None else shares(8, {"tokens": 100, "ids": ids, "log_probs": ids})
    found = {"token_ids": True, "logprobs": True, "inexact": [], "lacks": None, **backend}
    return status(backend=found, rehearsal={**UNTRIED, "known_tokens": known})


@pytest.mark.parametrize(
    ("check", "changes", "state", "says", "fix"),
    [
        ("disk", {"free_gb": 0.4}, "problem", "0.4 GB free", "retention_days"),
        ("disk", {"free_gb": 3.0}, "note", "3.0 GB free", "adapters_out"),
        ("disk", {"free_gb": 30.0}, "ok", "30.0 GB free", None),
        ("capture", {"status": status(problem="Answers are relayed but not captured: full")}, "problem", "full", "it"),
        ("exactness", {"status": counted(None, token_ids=False, logprobs=False)}, "note",
         "sends no token ids and no log-probs", "built-in"),
        ("exactness", {"status": counted(None, token_ids=False, adapters=True, lacks="Streams have none.")}, "note",
         "Streams have none; how much of the captures is exact is counted", None),
        ("exactness", {"status": counted(None)}, "ok", "", None),
        ("exactness", {"status": counted(100)}, "ok", "100% have exact ids", None),
        ("exactness", {"status": counted(93, lacks="Streams have none.")}, "note", "93% have exact ids", "Streams"),
        ("prompts", {"status": status(cut=None, rehearsal=verdict([], 8, "their words are not looked at"))}, "unknown",
         "take the prompts of the newest 8 answers; their words", None),
        ("prompts", {"status": status(cut=None, rehearsal=verdict([], 8))}, "ok", "take the newest 8 answers", None),
        ("prompts", {"status": status(cut=None, rehearsal=UNTRIED)}, "unknown", "after the first 2 answers", None),
        ("prompts", {"status": status(cut=None, rehearsal=verdict(["no"], 8))}, "note", "refuse 1: no", "template"),
        ("prompts", {"status": status(cut=None, rehearsal=verdict(["no"], 1))}, "problem", "all: no", "template"),
        ("prompts", {"status": status(cut="it read 33 tokens of 24,000 characters; set num_ctx",
                                      rehearsal=verdict([], 8))}, "note",
         "of 24,000 characters", "set num_ctx; what was cut trains as it was read"),
        ("prompts", {"status": status(cut="it read 33; set num_ctx", rehearsal=verdict(["no"], 1))}, "problem",
         "it read 33; of the newest", "set num_ctx"),
        ("adapters", {"status": status(backend={"adapters": False, "obstacle": None, "lacks": "cannot load"})},
         "note", "cannot", "vllm"),
        ("adapters", {"status": status(backend={"adapters": False, "obstacle": None, "lacks": "cannot load"},
                                        trains={"model": "local", "line": "it learns"})}, "note", "cannot", "a local"),
        ("adapters", {"status": status(backend={"adapters": True, "obstacle": "No GB are free.", "lacks": None})},
         "problem", "No GB", "nothing trains until then"),
        ("adapters", {"status": status(backend={"adapters": True, "obstacle": None, "lacks": None})}, "ok", "", None),
        ("adapters", {"status": status(backend={"adapters": True, "obstacle": None, "lacks": None,
         "growth": "a version is a model of 491 MB"})}, "ok", "a version is a model of 491 MB", None),
        ("rollouts", {"status": status(rollouts=None)}, "ok", "samples no answers", None),
        ("rollouts", {"status": status(rollouts={"line": "9 answers; waits: a request is answered", "problem": None})},
         "ok", "9 answers", None),
        ("rollouts", {"status": status(rollouts={"line": "9 answers; waits: train.reward failed: KeyError",
                                                 "problem": "train.reward failed: KeyError"})},
         "note", "train.reward failed", "again within a minute"),
        ("leftovers", {"status": status(backend={"left": {"line": "Ollama has x-rl:v1",
                                                          "command": "ollama rm x-rl:v1"}})},
         "note", "Ollama has x-rl:v1", "if that home is gone: `ollama rm x-rl:v1`"),
        ("leftovers", {"status": status(backend={"left": None})}, "ok", "no versions of another home", None),
        ("model", {"status": status(trains={"model": "local", "line": "local learns"})}, "ok", "local learns", None),
        ("ratings", {"status": status(ratings={"fresh": 9, "good": 9, "bad": 0, "untrainable": {}, "dampened": {}})},
         "note", "9 good",
         "other kind"),
        ("ratings", {"status": status(ratings={"fresh": 9, "good": 9, "bad": 9, "untrainable": {},
                                               "dampened": {"eve": 9}})}, "note", "9 of eve", "max_rater_share"),
        ("last_run", {"status": status(last_run={"id": 3, "status": "failed", "reason": "no memory", "ended_at": 1.0,
                                                 "folder": "/r3"}, backend={"frees": False})}, "problem", "no memory",
         "/r3/trainer.log"),
        ("last_run", {"status": status(last_run=SHORT, backend={"frees": True}, training={"share_gpu": False})},
         "problem", "out of memory", "train.share_gpu = true lets the model rest"),
        ("last_run", {"status": status(last_run=SHORT, backend={"frees": True}, training={"share_gpu": True})},
         "problem", "out of memory", "see /r3/trainer.log"),
        ("training", {"status": status(training=WAITS, backend={"frees": True}, ratings={"fresh": 9},
                                       match={"stops": False})}, "note", "GB are needed", "train.share_gpu = true"),
        ("training", {"status": status(training=WAITS, backend={"frees": False}, ratings={"fresh": 9},
                                       match={"stops": False})}, "note", "GB are needed", "rate more"),
        ("training", {"status": status(training=COMPARES, ratings={"fresh": 9}, match={"stops": False})}, "note",
         "the ratings wait until that experiment ends", None),
        ("training", {"status": status(training=EMPTY, ratings={"fresh": 0}, match={"stops": False}, last_run=None)},
         "ok", "waits for ratings", None),
        ("training", {"status": status(training=EMPTY, ratings={"fresh": 45}, match={"stops": False}, last_run=None,
                                       backend={"adapters": False})}, "note", "nothing trains now", None),
        ("training", {"status": status(training=EMPTY, ratings={"fresh": 45}, match={"stops": False}, last_run=None,
                                       trains={"model": None, "line": "nothing"})}, "note", "nothing trains now", None),
        ("last_run", {"status": status(last_run={"id": 3, "status": "done", "reason": "passed", "ended_at": 1.0,
                                                 "folder": "/r3"})}, "ok", "passed", None),
    ],
)  # fmt: skip
def test_each_check_says_what_to_do(
    tmp_path: Path, check: str, changes: dict[str, Any], state: str, says: str, fix: str | None
) -> None:
    settings = load({"home": tmp_path}, environ={}).settings
    facts = DoctorFacts(settings, "http://x", None, None, True, None, None, None, None, 100.0)
    result = getattr(doctor, check)(replace(facts, **changes))
    assert result.state == state and says in result.line
    assert (result.fix is None) if fix is None else (fix in result.fix)


def test_what_is_not_known_for_one_reason_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a proxy that was thirteen lines of "not known"."""
    settings = load({"home": tmp_path}, environ={}).settings
    facts = DoctorFacts(settings, "http://x", None, None, True, None, None, None, None, 100.0)
    checks = doctor.examine(facts)
    unknown = [check.name for check in checks if check.state == "unknown"]
    show_checks(checks)
    said = " ".join(capsys.readouterr().out.split())
    assert len(unknown) > 10 and said.count("told by a proxy that runs") == 1
    assert all(name in said for name in unknown)


async def test_further_models_are_asked(cli: Proxy) -> None:
    (cli.home / "rlproxy.toml").write_text(
        f'[models.coder]\nurl = "{cli.backend.url}"\n[models.away]\nurl = "http://127.0.0.1:9"\n'
    )
    check = (await found(cli))["further models"]
    assert check.state == "problem" and check.line.startswith("away: ") and "correct models.away.url" in check.line
    (cli.home / "rlproxy.toml").write_text(f'[models.coder]\nurl = "{cli.backend.url}"\n')
    check = (await found(cli))["further models"]
    assert (check.state, check.line) == ("ok", "there: coder; captured and rated, never trained")
