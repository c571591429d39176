"""`rlproxy forget` and `rlproxy cancel`, as a person runs them: also at a terminal that asks."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from pathlib import Path

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.copies import backup
from store.file import schema
from store.records import NewReaction
from tests.harness.runs import rated, until
from tests.proxy.cli.test_app import ROOT


async def at_a_terminal(home: Path, answer: str, *args: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", *args, "--home", str(home), cwd=ROOT, env=clean, stdin=theirs,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.write(ours, f"{answer}\n".encode())
    out, err = await process.communicate()
    os.close(ours)
    os.close(theirs)
    return process.returncode or 0, out.decode() + err.decode()


async def test_it_asks_and_names_the_versions(cli: Proxy) -> None:
    await rated(cli, 3)
    response = await cli.chat("secret", headers={"x-rl-session": "s"})
    id = response.headers["x-rl-completion-id"]
    await cli.rate(completion_id=id, rating="bad")
    await until(cli, live=1)
    code, _, err = await rlproxy(cli.home, "forget", "session", "s")
    assert code == 1 and "1 completion and 1 rating would go" in err and "Trained on them: v1" in err
    assert "nothing was forgotten" in err and "--yes" in err
    code, said = await at_a_terminal(cli.home, "n", "forget", "session", "s")
    assert code == 1 and "Forget it? [y/N]" in said and "nothing was forgotten" in said
    assert await cli.store.completions.get(id) is not None
    code, said = await at_a_terminal(cli.home, "y", "forget", "session", "s")
    assert code == 0 and "1 completion and 1 rating are gone" in said and "promote" in said
    assert await cli.store.completions.get(id) is None
    code, _, err = await rlproxy(cli.home, "forget", "session", "s", "--yes")
    assert code == 1 and "no session s" in err


async def test_the_question_says_what_was_asked_for(cli: Proxy) -> None:
    await rated(cli, 3)
    response = await cli.chat("secret", headers={"x-rl-session": "s"})
    await cli.rate(completion_id=response.headers["x-rl-completion-id"], rating="bad")
    await until(cli, live=1)
    await asyncio.to_thread(backup.backup, cli.home / schema.NAME, cli.home / "saved")
    _, _, err = await rlproxy(cli.home, "forget", "session", "s")
    assert (
        "Trained on them: v1. They stay as they are; with --retrain they" in err
        and "Copies that hold them: saved." in err
    )
    _, _, err = await rlproxy(cli.home, "forget", "session", "s", "--retrain", "--purge-backups")
    assert "They would be withdrawn at once, and trained again" in err and "stay" not in err
    assert "Copies that hold them, which would be deleted whole: saved." in err
    assert (cli.home / "saved").exists() and "nothing was forgotten" in err
    code, out, _ = await rlproxy(cli.home, "forget", "session", "s", "--retrain", "--purge-backups", "--yes")
    assert code == 0 and "Copies that hold them, deleted: saved." in out and "are trained again without them" in out


async def test_without_asking_and_as_json(cli: Proxy) -> None:
    id = (await cli.chat("a")).headers["x-rl-completion-id"]
    await cli.rate(completion_id=id, rating="good", rater="ann")
    code, out, _ = await rlproxy(cli.home, "forget", "rater", "ann", "--yes", "--json")
    found = json.loads(out)
    assert code == 0 and (found["completions"], found["ratings"], found["forgotten"]) == (0, 1, True)
    code, out, _ = await rlproxy(cli.home, "forget", "completion", id, "-y")
    assert code == 0 and "1 completion" in out and "No version was trained" in out
    assert (await rlproxy(cli.home, "forget", "everything", "x", "-y"))[0] == 2


async def test_a_raters_reactions_are_counted(cli: Proxy) -> None:
    """One that was taken back is no rating any more, and names them still."""
    id = (await cli.chat("a")).headers["x-rl-completion-id"]
    await cli.store.reactions.react(NewReaction(id, "ann", "slack", "1", "c 1", "thinking_face", None, 1.0))
    code, out, _ = await rlproxy(cli.home, "forget", "rater", "ann", "--yes")
    assert code == 0 and "0 ratings and 1 reaction on chat platforms are gone." in out


async def test_a_run_is_cancelled(cli: Proxy) -> None:
    code, _, err = await rlproxy(cli.home, "cancel")
    assert code == 1 and "no run to cancel" in err
    cli.launcher.hold = True
    await rated(cli, 4)
    while (await cli.get("/rl/status"))["training"]["run"] != 1:
        await asyncio.sleep(0.02)
    code, out, _ = await rlproxy(cli.home, "cancel", "--json")
    assert code == 0 and json.loads(out) == {"cancelled": 1}
    await until(cli, ended="cancelled")
    assert (await cli.get("/rl/runs/1"))["reason"] == "cancelled by a person"
