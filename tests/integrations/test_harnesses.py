"""Harnesses that give rewards, themselves from PyPI, through a real proxy: every turn is captured and a run is made.

Real: mini-swe-agent with its local environment, inspect_ai with reasoning-gym, verifiers, LangSmith's client, the
proxy. Scripted: the model, and the trainer. `make test-harnesses` installs the harnesses and runs these.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from proxy.core.address_file import ADDRESS_FILE
from scripts.fakes.backend import FakeBackend
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until

pytestmark = [pytest.mark.harnesses, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
VENVS = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlproxy/venvs"


async def run(
    harness: str, home: Path, *given: str, script: str = "attempts.py", **variables: str
) -> list[dict[str, Any]]:
    """The lines of JSON that its script printed."""
    command = [str(VENVS / harness / "bin/python"), str(ROOT / "integrations" / harness / script), *given]
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "INSPECT_LOG_DIR": str(home / "logs"), **variables}
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-4000:]
    return [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]


def shell(command: str) -> str:
    return f"THOUGHT: the next step.\n\n```mswea_bash_command\n{command}\n```"


async def test_mini_swe_agent_works_in_its_shell_and_what_it_did_trains(
    proxy: Proxy, backend: FakeBackend, tmp_path: Path
) -> None:
    files = tmp_path / "project"
    files.mkdir()
    (files / "numbers.txt").write_text("3\n4\n")
    attempts = itertools.count()

    def script(body: dict[str, Any]) -> str:
        """Every other attempt adds wrongly."""
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if "numbers.txt" not in str(body["messages"]):
            return "rlproxy's own question"
        if turn == 0:
            return shell("cat numbers.txt")
        if turn == 1:
            assert "3\n4" in str(body["messages"][-1]["content"]), "it saw what its shell said"
            return shell(f"echo {7 + next(attempts) % 2} > sum.txt")
        return shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")

    backend.script = script
    await proxy.stop()
    await proxy.start(train__start_at_episodes=4)
    told = await run(
        "mini_swe_agent", tmp_path, "--url", proxy.url, "--model", "fake", "--members", "4", "--files", str(files),
        "--task", "Write the sum of numbers.txt to sum.txt.", "--check", "test \"$(cat sum.txt)\" = 7",
    )  # fmt: skip
    assert [one["reward"] for one in told] == [1.0, 0.0, 1.0, 0.0]
    for one in told:
        episode = await proxy.get(f"/rl/episodes/{one['episode']}")
        assert [turn["segment"] for turn in episode["turns"]] == [0, 0, 0], "one segment: it resends its history"
        assert "cat numbers.txt" in episode["turns"][0]["text"] and episode["reward"] == one["reward"]
    status = await until(proxy, live=1)
    assert status["last_run"]["samples"] == 12
    assert (await proxy.get(f"/rl/episodes/{told[0]['episode']}"))["run"] == 1
    assert list(files.iterdir()) == [files / "numbers.txt"], "attempts work on copies"


async def test_inspect_ai_gives_rewards_in_groups_and_looks_at_held_out_questions(
    proxy: Proxy, backend: FakeBackend, tmp_path: Path
) -> None:
    turns = itertools.count()

    def script(body: dict[str, Any]) -> str:
        """The answer, every third time."""
        asked = re.search(r"(\d+) ([+-]) (\d+)", str(body["messages"][-1]["content"]))
        if asked is None:
            return "rlproxy's own question"
        answer = int(asked[1]) + (1 if asked[2] == "+" else -1) * int(asked[3])
        return str(answer + (next(turns) % 3 > 0))

    backend.script = script
    await proxy.stop()
    await proxy.start(train__start_at_episodes=8, train__group_size=4)
    rows = await run(
        "inspect_ai", tmp_path, "--url", proxy.url, "--model", "fake", "--rounds", "1", "--prompts", "2", "--members",
        "4", "--held-out", "2",
    )  # fmt: skip
    assert [row["round"] for row in rows] == [0, 1] and rows[1]["episodes"] == 8
    assert rows[1]["status"] == "done" and rows[1]["live"] == 1
    found = await proxy.get("/rl/episodes?limit=100")
    splits = [one["split"] for one in found["data"]]
    assert splits.count("train") == 8 and splits.count("eval") == 8 and found["counts"]["rewarded"] == 16
    assert all(one["turn_count"] == 1 for one in found["data"])
    assert len({one["group"] for one in found["data"] if one["split"] == "train"}) == 2


async def attempted(proxy: Proxy, home: Path, task: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What attempts.py printed of one round, and the episodes that trained."""
    await proxy.stop()
    await proxy.start(train__start_at_episodes=8, train__group_size=4)
    rows = await run(
        "inspect_ai", home, "--url", proxy.url, "--model", "fake", "--task", task, "--rounds", "1", "--prompts", "2",
        "--members", "4", "--held-out", "2",
    )  # fmt: skip
    found = (await proxy.get("/rl/episodes?split=train&limit=100"))["data"]
    return rows, [await proxy.get(f"/rl/episodes/{one['id']}") for one in found]


async def test_of_a_scripted_environment_only_the_first_of_two_turns_counts(
    proxy: Proxy, backend: FakeBackend, tmp_path: Path
) -> None:
    asked: Counter[str] = Counter()

    def script(body: dict[str, Any]) -> str:
        """The last word, every other time that it is asked; and chatter, in which the right word is no help."""
        said = str(body["messages"][-1]["content"])
        if said == "And why?":
            return "Because window, table, zebra."
        if not said.startswith("Choose one: "):
            return "rlproxy's own question"
        asked[said] += 1
        return str(re.findall(r"\w+", said)[-1 if asked[said] % 2 else 2]).capitalize()

    backend.script = script
    rows, episodes = await attempted(proxy, tmp_path, "two_turn")
    assert rows[1]["status"] == "done" and rows[1]["success"] == 0.5 and rows[1]["marks"] == {"right": 0.5}
    assert len(episodes) == 8 and {one["turn_count"] for one in episodes} == {2}
    assert all([turn["segment"] for turn in one["turns"]] == [0, 0] for one in episodes)
    assert sorted(one["reward"] for one in episodes) == [0] * 4 + [1] * 4


async def test_a_calculator_is_called_in_json_and_its_result_comes_back(
    proxy: Proxy, backend: FakeBackend, tmp_path: Path
) -> None:
    asked: Counter[str] = Counter()

    def script(body: dict[str, Any]) -> str:
        """Of four attempts one calls it, one computes by itself and is wrong, and two have words around their call."""
        said = str(body["messages"][-1]["content"])
        if result := re.fullmatch(r"The calculator says (-?\d+)\.", said):
            return f"It is {result[1]}."
        if question := re.fullmatch(r"What is (.+)\?", said):
            call = json.dumps({"calculator": question[1]})
            asked[said] += 1
            return (call, "7", f"Sure: {call}", f"```{call}```")[asked[said] % 4]
        return "No" if said == "That is not a call." else "rlproxy's own question"

    backend.script = script
    rows, episodes = await attempted(proxy, tmp_path, "calculator")
    assert rows[1]["status"] == "done" and rows[1]["marks"] == {"valid call": 0.25, "right answer": 0.25}
    assert {one["turn_count"] for one in episodes} == {2}
    assert sorted(one["reward"] for one in episodes) == [0] * 6 + [1] * 2


async def test_rewards_of_a_verifiers_run_are_imported_and_train(
    proxy: Proxy, backend: FakeBackend, tmp_path: Path
) -> None:
    attempts = itertools.count()

    def script(body: dict[str, Any]) -> str:
        """The sum in the second turn, and wrong in every other attempt."""
        asked = re.search(r"What is (\d+) \+ (\d+)", str(body["messages"][0]["content"]))
        if asked is None:
            return "rlproxy's own question"
        if len(body["messages"]) == 1:
            return "Let me add them."
        return str(int(asked[1]) + int(asked[2]) + next(attempts) % 2)

    backend.script = script
    await proxy.stop()
    await proxy.start(train__start_at_episodes=8)
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "integrations/verifiers")}
    command = [
        str(VENVS / "verifiers/bin/vf-eval"), "rlproxy_sums", "--env.agent.harness.id", "rlproxy_sums",
        "--env.agent.runtime.type", "subprocess", "--client.base-url", f"{proxy.url}/v1", "--client.api-key-var",
        "RLPROXY_KEY", "--model", "fake", "--num-rollouts", "4", "--no-push", "--no-rich",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-4000:]
    outputs = str(tmp_path / "outputs")
    code, out, err = await rlproxy(proxy.home, "import", "verifiers", outputs, "--dry-run")
    assert code == 0 and out.startswith("8 episodes would be rewarded, 0 had their reward before; 2 groups"), err
    assert (await proxy.get("/rl/episodes"))["data"] == []
    code, out, err = await rlproxy(proxy.home, "import", "verifiers", outputs, "--json")
    assert code == 0 and json.loads(out)["stored"] == 8 and json.loads(out)["left_out"] == [], err
    found = (await proxy.get("/rl/episodes?limit=100"))["data"]
    assert sorted(one["reward"] for one in found) == [0.25] * 4 + [1.0] * 4
    assert {one["turn_count"] for one in found} == {2} and len({one["group"] for one in found}) == 2
    status = await until(proxy, live=1)
    assert status["last_run"]["samples"] == 16
    code, out, _ = await rlproxy(proxy.home, "import", "verifiers", outputs, "--json")
    assert code == 0 and (json.loads(out)["stored"], json.loads(out)["known"]) == (0, 8)


async def test_mlflow_gets_the_numbers_of_a_run(proxy: Proxy, tmp_path: Path) -> None:
    gate = {"event": "gate", "checks": {"margin": {"value": 0.25, "bound": 0.05, "ok": True}}}
    proxy.launcher.progress = [{"event": "step", "step": 2, "steps": 2, "loss": 0.25, "rate": 1e-4, "eta_s": 0.0}, gate]
    runs = tmp_path / "mlruns"
    tracking = {"MLFLOW_TRACKING_URI": str(runs), "MLFLOW_ALLOW_FILE_STORE": "true"}
    process = await asyncio.create_subprocess_exec(
        str(VENVS / "trackers/bin/python"), str(ROOT / "integrations/trackers/follow.py"), "mlflow",
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "RLPROXY_URL": proxy.url, **tracking},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None and b"following" in await process.stdout.readline()
        await rated(proxy, 4)
        async with asyncio.timeout(60):
            while not (status := list(runs.glob("*/*/tags/status"))):
                await asyncio.sleep(0.1)
    finally:
        process.terminate()
        await process.wait()
    run = status[0].parents[1]
    losses = [line.split()[1:] for line in (run / "metrics/loss").read_text().splitlines()]
    assert losses == [["0.5", "1"], ["0.25", "2"]] and status[0].read_text() == "done"
    assert (run / "metrics/gate/margin").read_text().split()[1:] == ["0.25", "2"]
    assert (run / "tags/mlflow.runName").read_text() == "run-1" and (run / "params/samples").read_text() == "4"


async def test_langsmiths_client_rates_an_answer(proxy: Proxy, tmp_path: Path) -> None:
    answered, rated = await run("langsmith", tmp_path, script="rate.py", RLPROXY_URL=proxy.url, MODEL="fake")
    assert answered["answer"].startswith("You said: hi")
    found = await proxy.store.completions.get(rated["rated"])
    assert found is not None
    assert [(one.value, one.comment, one.source) for one in found.ratings] == [(1.0, "so kind", "langsmith")]
