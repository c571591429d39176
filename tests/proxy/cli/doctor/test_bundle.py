"""The doctor's bundle: what helps is in it, and nobody's words are, wherever they were planted."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.cli.doctor import bundle
from proxy.cli.doctor.bundle import log_lines
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy

SECRET = "Zanzibar-marmalade-4711"
PATTERN = "own-[0-9]{3}"  # not SECRET, or that would be gone by this alone
KEY = "key-that-nobody-may-see-0123456789"
RLPROXY_LOG = f"""\
\x1b[2m2026\x1b[0m [\x1b[32minfo     \x1b[0m] run ended   reason='{SECRET} was said' run=3 status=done
2026-11-21T16:00:01 [error    ] capture is failing             completion=rl-1 error="the backend said: {SECRET}"
2026-11-21T16:00:02 [error    ] learner
Traceback (most recent call last):
  File "/x/proxy/learner.py", line 99, in _loop
    prompt = "{SECRET}"
ValueError: {SECRET}
{{"event": "swap", "level": "info", "timestamp": "t", "live": 2, "reason": "{SECRET}"}}
some library prints {SECRET}
{{"not": "ours", "{SECRET}": 1}}
"""


def inside(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        return {m.name: tar.extractfile(m).read().decode() for m in tar.getmembers()}  # type: ignore[union-attr]


async def test_no_word_of_a_conversation_is_in_it(cli: Proxy, tmp_path: Path) -> None:
    cli.backend.says = f"The answer is {SECRET}"
    await cli.chat(f"Tell me {SECRET}", headers={"x-rl-session": SECRET, "x-rl-user": SECRET})
    await cli.rate(completion_id="last", rating="bad", comment=SECRET, correction=SECRET, rater=SECRET)
    logs = cli.home / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "serve.log").write_text(RLPROXY_LOG)
    (logs / "backend.log").write_text(f"prompt: {SECRET}\n")
    (cli.home / "rlproxy.toml").write_text(
        f'[backend]\napi_key = "{KEY}"\ncommand = "serve --key {KEY}"\n[train.raters]\n"{SECRET}" = 2.0\n'
        f'[redaction]\npatterns = ["{PATTERN}"]\n[server]\nchat_admins = ["{SECRET}"]\n'
    )
    (cli.home / "rlproxy.toml").chmod(0o600)
    out = tmp_path / "report.tar.gz"
    code, _, err = await rlproxy(cli.home, "doctor", "--bundle", str(out))
    assert code == 0 and "look into it first" in err
    assert out.stat().st_mode & 0o777 == 0o600
    parts = inside(out)
    assert not [name for name, text in parts.items() if SECRET in text or KEY in text or PATTERN in text]
    assert str(Path.home()) not in "".join(parts.values()) and str(cli.home) not in "".join(parts.values())
    found = {name.rpartition("/")[2]: text for name, text in parts.items()}
    database = json.loads(found["database.json"])
    assert database["schema"] > 0 and database["rows"]["completions"] == 1 and database["rows"]["ratings"] == 1
    assert {c["name"] for c in json.loads(found["doctor.json"])} > {"memory", "keys", "agents", "template", "training"}
    assert json.loads(found["status.json"])["ratings"]["fresh"] == 1
    assert json.loads(found["versions.json"])["packages"]["aiohttp"]
    assert json.loads(found["logs.json"]).keys() == {"serve.log", "backend.log"}
    log = found["serve.log"]
    assert "run ended" in log and "run=3 status=done" in log and f"reason=<{len(SECRET) + 11} characters>" in log
    assert "File /x/proxy/learner.py, line 99, in _loop\n  ValueError" in log and "[info] swap live=2" in log
    code, _, err = await rlproxy(cli.home, "doctor", "--bundle", str(out))
    assert code == 1 and "exists already" in err


async def test_without_a_proxy_and_where_it_cannot_be_written(tmp_path: Path) -> None:
    out = tmp_path / "report.tar.gz"
    nobody = {"RLPROXY_SERVER__PORT": "1"}
    code, _, _ = await rlproxy(tmp_path / "home", "doctor", "--bundle", str(out), **nobody)
    parts = {name.rpartition("/")[2]: text for name, text in inside(out).items()}
    assert code == 3 and json.loads(parts["database.json"]) == {"error": "there is none"}
    assert "rlproxy serve" in json.loads(parts["status.json"])["error"]
    code, _, err = await rlproxy(tmp_path / "home", "doctor", "--bundle", str(tmp_path / "no" / "x"), **nobody)
    assert code == 1 and "could not be written" in err


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.text(max_size=60), key=st.sampled_from(["error", "why", "path", "reason", "x"]))
def test_no_line_lets_another_ones_words_through(tmp_path: Path, noise: str, key: str) -> None:
    secret = "zanzibar"
    file = tmp_path / "serve.log"
    told = f"{noise}{secret}{noise}"
    lines = [
        f"2026-11-21T16:00:00 [info     ] event   {key}={told!r}",
        f"2026-11-21T16:00:00 [info     ] event   run=3 {key}={json.dumps(told)}",
        json.dumps({"event": "e", "level": "info", "timestamp": "t", key: told}),
        f"    {told}", f"ValueError: {told}", told + " said something else",
    ]  # fmt: skip
    file.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    assert not [line for line in log_lines(file) if secret in line]
    assert len(lines) < bundle.LINES
