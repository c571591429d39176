"""Ask a real Ollama while things happen to it: no answer may be of another version, and none may be lost.

`OLLAMA_BIN=…/ollama[:…/ollama] scripts/chaos/ollama_faults.py [--faults killed …] [--each 8]` puts what each server did
into benchmarks/ollama_faults.json, beside the others. A whole rlproxy runs in this process over a server of its own,
started as `make test-ollama` does. It has three versions of SmolLM2-135M that all say something else. Two clients ask a
fixed question, greedily, of the live version, the base and two pins in turn, before, during and after each fault.

An answer is wrong where its text is not among those of the version that its header names. An answer is lost where
rlproxy has not stored it whole or does not take its rating. A question that fails is counted; what it was told is kept.
The disk that is full is a small tmpfs, which needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from scripts.harness.circumstances import circumstances
from scripts.harness.in_process import Proxy, proxy_before
from scripts.harness.lora import random_adapter
from scripts.harness.ollama_server import MODEL, OllamaServer, base_gguf, binaries
from scripts.harness.versions import QUESTION, with_real_versions
from trainer.formats.weights import resolve
from trainer.launch import LocalLauncher

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "ollama_faults.json"
PINS = ("", "@base", "@v1", "@v2")
LIMITS: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
CLIENTS = 2
AWAY_S = 3.0
PAUSE_S = 0.2
GIVE_UP_S = 600.0
DISK_MB = 1400


@dataclass
class Observations:
    """Answers and failures that the clients met during one fault."""

    answers: int = 0
    by_version: Counter[str] = field(default_factory=Counter)
    unknown: list[tuple[str, str]] = field(default_factory=list)  # version and text, of no text known by then
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    whole: list[str] = field(default_factory=list)  # ids of answers that came to their end

    def met(self, label: str, text: str, texts: dict[str, set[str]]) -> None:
        """An answer, as that version, while `texts` is what versions are known to say."""
        self.answers += 1
        self.by_version[label] += 1
        if text not in texts.get(label, ()):
            self.unknown.append((label, text))

    def judge(self, texts: dict[str, set[str]]) -> None:
        """Once the fault is over. A version that went live meanwhile answered before its texts were learned."""
        for label, text in self.unknown:
            if text not in texts.get(label, ()):
                speakers = [name for name, version_texts in texts.items() if name != label and text in version_texts]
                self.wrong.append(f"{label} said {text!r}" + (f", as {' and '.join(speakers)} do" if speakers else ""))


class House:
    """A server, an rlproxy over it, and what each version says."""

    def __init__(self, folder: Path, binary: Path, adapters: list[Path], weights: Path) -> None:
        self.folder, self.adapters = folder, adapters
        self.weights = weights
        self.server = OllamaServer(binary, folder)
        self.texts: dict[str, set[str]] = {}
        self.proxy: Proxy

    async def __aenter__(self) -> House:
        await self.server.start()
        await self.server.create(MODEL)
        flags = {"backend__url": self.server.url, "backend__model": MODEL, "train__weights": str(self.weights)}
        flags["backend__models_dir"] = str(self.server.models)
        self.proxy = proxy_before(self.folder / "home", backend__kind="ollama", **flags)
        await self.proxy.start()
        await with_real_versions(self.proxy, self.adapters)
        for version in ("1", "2"):
            await self.must(f"/rl/promote/{version}")
        for pin in PINS[1:]:
            await self.learn(pin)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.stop()
        await self.server.stop()

    async def must(self, path: str) -> None:
        status, body = await self.proxy.post(path)
        if status != 200:
            raise SystemExit(f"{path}: {status} {body}\n{self.server.log()}")

    async def learn(self, pin: str) -> None:
        """Note the texts of a version, with the prompt read anew and out of the cache."""
        label = pin.removeprefix("@")
        for _ in range(3):
            text, said_by, _ = await self.ask(pin)
            assert said_by == label, (said_by, label)
            self.texts.setdefault(label, set()).add(text)

    async def ask(self, pin: str) -> tuple[str, str, str]:
        """The text of an answer, the version that its header names, and its id. Raises Failed."""
        response = await self.proxy.chat(QUESTION, model=f"{MODEL}{pin}", **LIMITS)
        body = await response.json()
        if response.status != 200:
            raise Failed(f"{response.status} {body['error']['message']}")
        text: str = body["choices"][0]["message"]["content"]
        return text, response.headers["x-rl-adapter"], response.headers["x-rl-completion-id"]

    def plain(self, words: str) -> str:
        """Without what differs from one time to the next."""
        for value, word in ((self.proxy.mark, "MARK"), (self.server.url, "URL"), (str(self.folder), "FOLDER")):
            words = words.replace(value, word)
        return words.replace(str(self.server.port), "PORT")[:300]


class Failed(Exception):
    """A client got an error instead of an answer."""


async def client(house: House, observations: Observations, first: int) -> None:
    turn = first
    while True:
        pin = PINS[turn % len(PINS)]
        turn += 1
        try:
            text, label, id = await house.ask(pin)
        except Failed as error:
            observations.failed[house.plain(str(error))] += 1
            await asyncio.sleep(PAUSE_S)
            continue
        except (aiohttp.ClientError, TimeoutError) as error:
            observations.failed[f"connection: {type(error).__name__}"] += 1
            continue
        observations.met(label, text, house.texts)
        observations.whole.append(id)
        status, reply = await house.proxy.rate(completion_id=id, rating="good")
        if status != 201:
            observations.lost.append(f"{id}: rating {status} {reply}")


@contextlib.asynccontextmanager
async def asking(house: House) -> AsyncIterator[Observations]:
    observations = Observations()
    clients = [asyncio.create_task(client(house, observations, n * 2)) for n in range(CLIENTS)]
    try:
        yield observations
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def wait_for_answers(observations: Observations, count: int) -> None:
    """Until that many more answers have come."""
    goal, began = observations.answers + count, time.monotonic()
    while observations.answers < goal:
        if time.monotonic() - began > GIVE_UP_S:
            raise SystemExit(f"no answers any more: {observations.failed}")
        await asyncio.sleep(PAUSE_S)


async def stored(house: House, observations: Observations) -> None:
    """Every answer that came whole is in the store as done."""
    statuses: dict[str, str] = {}
    path = "/rl/completions?limit=1000"
    for row in (await house.proxy.get(path))["data"]:
        statuses[row["id"]] = row["status"]
    observations.lost += [
        f"{id}: {statuses.get(id, 'not stored')}" for id in observations.whole if statuses.get(id) != "done"
    ]


# The faults


async def killed(house: House) -> None:
    await house.server.stop(signal.SIGKILL)
    await asyncio.sleep(AWAY_S)
    await house.server.start()


async def restarted(house: House) -> None:
    await house.server.stop(signal.SIGTERM)
    await asyncio.sleep(AWAY_S)
    await house.server.start()


async def runners_killed(house: House) -> None:
    assert house.server.process is not None
    for child in psutil.Process(house.server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


async def versions_removed(house: House) -> None:
    for tag in [name for name in await house.server.names() if "-rl:" in name]:
        await house.server.run("rm", tag)


async def name_taken(house: House) -> None:
    tag = f"{MODEL}-rl:v3-{house.proxy.mark}"
    await house.server.run("cp", MODEL, tag)
    await house.must("/rl/promote/3")
    await house.learn("@v3")
    assert {tag, f"{tag}-2"} <= await house.server.names()
    await house.must("/rl/promote/2")


async def template_updated(house: House) -> None:
    await house.server.create(MODEL, "SYSTEM You answer in one word.")
    await house.learn("@base")


async def _other_weights(house: House) -> None:
    """Another fine-tune of the same shape, under the same name."""
    weights_file = house.folder / "other.gguf"
    if not weights_file.exists():
        await LocalLauncher().fuse(house.adapters[2], base_gguf(), weights_file)
    (house.folder / "Modelfile").write_text(f"FROM {weights_file}\nPARAMETER num_thread 1\n")
    await house.server.run("create", MODEL, "-f", "Modelfile")


async def model_updated(house: House) -> None:
    await _other_weights(house)
    await house.learn("@base")
    await (await house.proxy.http.get("/api/tags")).read()
    state = (await house.proxy.get("/rl/status"))["backend"]["state"]
    assert "was updated there" in state, state


async def one_removed_since(house: House) -> None:
    """After the update: v2 is still there, and with it the weights that v1 was trained on."""
    await house.server.run("rm", f"{MODEL}-rl:v1-{house.proxy.mark}")


async def all_removed_since(house: House) -> None:
    """After the update, and with the weights gone that the versions were trained on."""
    while [name for name in await house.server.names() if "-rl:" in name]:  # a pin has one made again meanwhile
        await versions_removed(house)
    await restarted(house)  # what nothing names is removed at its start
    for label in house.texts.keys() - {"base"}:
        house.texts[label] = set()  # nobody may answer as these any more


async def disk_full(house: House) -> None:
    """A swap with no room for it, then one with."""
    await house.must("/rl/promote/1")
    mark = house.proxy.mark
    for tag in [name for name in await house.server.names() if "-rl:" in name and f"-rl:v1-{mark}" not in name]:
        await house.server.run("rm", tag)
    disk = Path(os.environ["OLLAMA_FAULTS_DISK"])
    await house.server.stop()
    await house.server.start()  # it removes what nothing names
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - 2**20)
    status, body = await house.proxy.post("/rl/promote/3")
    assert status in (501, 502, 503, 507), (status, body)
    await asyncio.sleep(AWAY_S)
    filler.unlink()
    await house.must("/rl/promote/3")
    await house.learn("@v3")


Fault = Callable[[House], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "killed": killed, "runners killed": runners_killed, "restarted": restarted, "versions removed": versions_removed,
    "name taken": name_taken, "disk full": disk_full, "template updated": template_updated,
    "model updated": model_updated, "a version removed after an update": one_removed_since,
    "all versions removed after an update": all_removed_since,
}  # fmt: skip


async def through(house: House, fault: Fault, answer_count: int) -> dict[str, Any]:
    async with asking(house) as observations:
        await wait_for_answers(observations, answer_count)
        began = time.perf_counter()
        await fault(house)
        seconds = time.perf_counter() - began
        await wait_for_answers(observations, 2 * answer_count)
    await asyncio.sleep(PAUSE_S)
    await stored(house, observations)
    observations.judge(house.texts)
    status = await house.proxy.get("/rl/status")
    return {
        "answers": observations.answers, "by": dict(observations.by_version),
        "wrong": observations.wrong, "lost": observations.lost,
        "failed": sum(observations.failed.values()), "told": dict(observations.failed), "seconds": round(seconds, 1),
        "live_after": status["live"], "problem": house.plain(status["problem"] or ""),
    }  # fmt: skip


@contextlib.contextmanager
def _small_disk(folder: Path) -> Any:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def measure(
    binary: Path, label: str, names: list[str], answer_count: int, work: Path, about: dict[str, Any]
) -> None:
    weights = resolve().path
    adapters = [random_adapter(weights, work / f"a{n}", seed=n, size=0.03) for n in (1, 2, 3)]
    (work / "ollama").mkdir()
    with _small_disk(work / "disk") as disk:
        os.environ["OLLAMA_FAULTS_DISK"] = str(disk)
        house = House(work / "ollama", binary, adapters, weights)
        house.server = OllamaServer(binary, work / "ollama", models=disk)
        async with house:
            for name in names:
                figures = await through(house, FAULTS[name], answer_count)
                print(label, name, json.dumps(figures), flush=True)
                _keep(label, name, about, figures)


def _keep(label: str, name: str, about: dict[str, Any], figures: dict[str, Any]) -> None:
    """At once: what a later fault does to the measurement costs nothing that was measured."""
    report: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    faults = {**report.get(label, {}).get("faults", {}), name: figures}
    report[label] = {**about, "faults": {fault: faults[fault] for fault in FAULTS if fault in faults}}
    OUT.write_text(json.dumps(report, indent=1) + "\n")


def version_of(binary: Path) -> str:
    """The program's version: the last word that it prints where no server answers."""
    env = {**os.environ, "OLLAMA_HOST": "127.0.0.1:1"}
    return subprocess.run([binary, "--version"], capture_output=True, text=True, env=env).stdout.split()[-1]


async def main() -> None:
    parser = argparse.ArgumentParser(description="What clients meet while things happen to a real Ollama.")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--each", type=int, default=8, help="answers before a fault, and half of those after it")
    arguments = parser.parse_args()
    os.environ["OLLAMA_NUM_PARALLEL"] = "1"  # what else is in a batch changes an answer a little
    for binary in binaries():
        about = circumstances()
        version = await asyncio.to_thread(version_of, binary)
        with tempfile.TemporaryDirectory(prefix="faults-") as work:
            await measure(binary, version, arguments.faults, arguments.each, Path(work), about)


if __name__ == "__main__":
    asyncio.run(main())
