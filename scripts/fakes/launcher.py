"""A trainer that trains nothing: it writes what the real one would leave, at once or when told."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from config import presets
from trainer.languages import choose
from trainer.launch import LanguageChoice, LaunchError, LayerPlan, PlaceError, Seal, ServerFormat, adapter_layers

NO_TENSORS = (2).to_bytes(8, "little") + b"{}"  # a sound safetensors file


class FakeJob:
    def __init__(self, folder: Path, launcher: FakeLauncher) -> None:
        self.folder = folder
        self._launcher = launcher
        self.pid: int | None = os.getpid()
        self.was_under_way = launcher.under_way
        self.exceeded: str | None = None
        self._stopped = asyncio.Event()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        start = {"event": "start", "run": 1, "device": "cpu", "why": "it is a fake"}
        step = {"event": "step", "step": 1, "steps": 2, "loss": 0.5, "eta_s": 1.0}
        for event in (start, step, *self._launcher.progress):
            with (self.folder / "progress.jsonl").open("a") as file:
                file.write(json.dumps(event) + "\n")
            yield event
            await asyncio.sleep(self._launcher.every_s)

    async def wait(self) -> int:
        if self._launcher.hold:
            await self._stopped.wait()
            return 143
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._launcher.takes_s):
                await self._stopped.wait()
            return 143
        if self._launcher.busy_runs > 0:
            self._launcher.busy_runs -= 1
            return 75
        if self._launcher.crashes > 0:
            self._launcher.crashes -= 1
            return -9
        if self._launcher.exceeds:
            self.exceeded = self._launcher.exceeds
            return -9
        if self._launcher.answers_beside and self._launcher.outcome == "passed":
            write_answer_pairs(self.folder, self._launcher.keys[-1])
        write_result(self.folder, self._launcher.outcome, self._launcher.result)
        return 0

    async def terminate(self) -> None:
        self._stopped.set()

    async def leave(self) -> None:
        await self.terminate()


class FakeLauncher:
    """`outcome` is the status that the next run ends with; `crashes` of them end without a result before."""

    def __init__(self) -> None:
        self.place = "local"
        self.refuses_runs: str | None = None  # why no run can train where it is to
        self.unreachable: str | None = None  # why the place does not take the next runs
        self.under_way = False  # whether the next run is found at work there
        self.forgotten: list[Path] = []  # folders of runs that have ended
        self.outcome = "passed"
        self.result: dict[str, Any] = {}  # what more the next results say
        self.progress: list[dict[str, Any]] = []  # and what is said on the way
        self.every_s = 0.0  # between two of them
        self.answers_beside = False  # whether it leaves answers of parent and candidate to rated prompts
        self.crashes = 0
        self.exceeds = ""  # the limit that the next trainers are killed for
        self.busy_runs = 0  # trainers that find another at work in their folder
        self.hold = False
        self.takes_s = 0.0
        self.started: list[Path] = []
        self.nices: list[int] = []
        self.keys: list[bytes | None] = []  # what opens their samples
        self.lacks: str | None = None
        self.unconverted: str | None = None  # why no adapter could be converted
        self.fused: list[Path] = []
        self.weights_say: dict[str, Any] = {}
        self.unprobed: str | None = None  # why the weights could not be looked at
        self.probed = 0
        self.fetched = True  # whether the weights are on this machine
        self.rehearsed: list[list[dict[str, Any]]] = []  # lines of which it was asked whether a run would take them
        self.rehearsed_pictures: list[dict[str, str]] = []  # of each such question
        self.refuses: str | None = None  # why it would not
        self.texts: list[str] = []  # of which the languages were asked for
        self.shares = {"en": 1.0}  # of the languages in them
        self.pauses: list[bool] = []  # how often the run was told to stand still, or to go on

    def available(self, *, serves: bool = False, tensorboard: bool = False) -> str | None:
        return self.lacks

    async def refusal(self, weights: str, *, sealed: bool) -> str | None:
        return self.refuses_runs

    async def forget(self, run_folder: Path) -> None:
        self.forgotten.append(run_folder)

    async def settle(self, runs: Path, unfinished: Collection[Path]) -> None:
        pass

    async def start(
        self, run_folder: Path, *, threads: int, nice: int, max_memory_gb: float = 0, key: bytes | None = None
    ) -> FakeJob:
        if self.unreachable:
            raise PlaceError(self.unreachable)
        self.started.append(run_folder)
        self.nices.append(nice)
        self.keys.append(key)
        return FakeJob(run_folder, self)

    def stand_still(self, paused: bool) -> None:
        self.pauses.append(paused)

    async def rank(self, weights: str, preset: str, overrides: Mapping[str, Any]) -> int:
        return presets.resolve(preset, overrides).rank

    async def layers(
        self,
        weights: str,
        server_format: ServerFormat,
        preset: str,
        overrides: Mapping[str, Any],
        parent: Path | None = None,
    ) -> LayerPlan | None:
        return adapter_layers(weights, server_format, preset, overrides, parent)

    async def languages(self, texts: Sequence[str]) -> LanguageChoice:
        """Choose by `shares`, as `trainer.languages` does by what it reads."""
        self.texts = list(texts)
        return choose(self.shares)

    def has_weights(self, weights: str) -> bool:
        return self.fetched

    async def probe(self, weights: str, order: Mapping[str, Any], *, threads: int, nice: int, log: Path) -> Any:
        """Weights that say to everything what the server said, unless `weights_say` has something else."""
        conversations, lines = order.get("conversations", ()), order.get("lines", ())
        self.probed += bool(conversations) and order.get("score", True)
        self.rehearsed += [list(lines)] if lines else []
        self.rehearsed_pictures += [dict(order["pictures"])] if lines else []
        if self.unprobed:
            raise LaunchError(self.unprobed)
        read = [
            {
                "prompt_ids": each["prompt_ids"] or [1],
                "rendered": "as the server",
                "theirs": "as the server" if each["prompt_ids"] or each["prompt_text"] else None,
                "their_tokens": each["prompt_tokens"] if each["prompt_ids"] or each["prompt_text"] else None,
                "reply_ids": each["reply_ids"] or [1],
                "logprobs": [-len(word) / 10 for word in _words(each["text"])],
                "best": [-len(word) / 10 for word in _words(each["text"])],
            }
            for each in conversations
        ]
        figures = {"architecture": "fake", "vocabulary": 10**6, "tokens": 10**6, "width": 8, "parameters": 1000}
        explained = sum(each["prompt_tokens"] is not None for each in conversations)
        figures |= {"way": "the weights' chat template", "explained": explained, "known": explained, "wrong": None}
        figures |= {"refused": [self.refuses for _ in lines], "doubt": None}
        figures |= {"known_tokens": {"tokens": 4 * len(order.get("counted", ())), "ids": 0, "log_probs": 0}}
        return {"path": weights, "unscored": None, "conversations": read, **figures, **self.weights_say}

    async def start_server(self, *_: Any, **__: Any) -> Any:
        raise LaunchError("The fake launcher starts no server.")

    async def gguf(self, adapter: Path, weights: str | None, out: Path) -> None:
        if reason := self.lacks or self.unconverted:
            raise LaunchError(reason)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(b"GGUF")

    async def fuse(self, adapter: Path, base: Path, out: Path) -> None:
        if reason := self.lacks or self.unconverted:
            raise LaunchError(reason)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(base.read_bytes() + f" with {adapter}".encode())
        self.fused.append(adapter)

    async def mlx(self, adapter: Path, out: Path) -> None:
        if reason := self.lacks or self.unconverted:
            raise LaunchError(reason)
        out.mkdir(parents=True, exist_ok=True)
        (out / "adapter_config.json").write_text(json.dumps({"from": str(adapter)}))


def _words(text: str) -> list[str]:
    """Cut a text as scripts.fakes.backend does: a word, and the space after it."""
    return re.findall(r"\S+\s?", text)


def write_result(folder: Path, status: str, fields: dict[str, Any]) -> None:
    (folder / "checkpoint").mkdir(exist_ok=True)
    (folder / "checkpoint" / "state").write_text("what an unfinished run needs")
    order = json.loads((folder / "run.json").read_text())
    result: dict[str, Any] = {
        "status": status,
        "reason": f"it {status}",
        "baseline_after": 0.25,
        "metrics": {},
        "gate": {},
    }
    result |= fields
    if status == "passed":
        write_adapter(Path(order["out"]), result["gate"], result.get("changes"))
        result["adapter"] = order["out"]
    (folder / "result.json").write_text(json.dumps(result))


def write_answer_pairs(folder: Path, key: bytes | None) -> None:
    """The parent repeats the prompt, the candidate says less of it."""
    seal = Seal(key)
    samples = [json.loads(line) for line in seal.read(folder / "samples.jsonl").splitlines()]
    lines = [
        {
            "completion": sample["completion"],
            "ratings": sample["ratings"],
            "parent_answer": f"before: {sample['messages'][-1]['content']}",
            "answer": f"after: {sample['messages'][-1]['content']}",
        }
        for sample in samples
    ]
    seal.write(folder / "answer_pairs.jsonl", b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def write_adapter(folder: Path, gate: dict[str, Any] | None = None, changes: dict[str, float] | None = None) -> None:
    folder.mkdir(parents=True)
    files = {}
    for name, content in (("adapter_model.safetensors", NO_TENSORS), ("adapter_config.json", b"{}")):
        (folder / name).write_bytes(content)
        files[name] = hashlib.sha256(content).hexdigest()
    manifest = {"format": 1, "files": files, "metrics": {}, "gate": gate or {}, "changes": changes}
    (folder / "manifest.json").write_text(json.dumps(manifest))
