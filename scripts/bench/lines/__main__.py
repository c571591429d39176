"""Eight lines on one base: does each learn its own taste, do the others stay, what does a line cost?

    python -m scripts.bench.lines [--lines 8] [--ratings 32] [--eval 50] [--out benchmarks/lines.json]
    python -m scripts.bench.lines --real --lines 4 --tokens 64 --out benchmarks/lines_real.json

A real `rlproxy serve` with the built-in server. All ratings are given first; the runs then take turns by themselves.
Each held-out question has a seed of its own, so that a line that nothing has touched answers the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from scripts.bench.lines.tastes import FORMS, LETTERS, Likes
from scripts.bench.persona import ROOT, prompts
from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving
from scripts.harness.tiny_model import make_tiny_model
from trainer.formats import weights

AT_ONCE: Final = 16
MOST_MOVED: Final = 0.02  # of the liked share of a line that nothing was to touch
OVERRIDES: Final = {"drift_weak": 1.0}  # a taste of letters looks like chance; a line is to move all the same
RUN_S: Final = 1800.0  # that all runs may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=8)
    parser.add_argument("--ratings", type=int, default=32, help="a line")
    parser.add_argument("--eval", type=int, default=50, help="held-out questions")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/lines.json")
    parser.add_argument("--real", action="store_true", help="the small real model, and tastes of form")
    arguments = parser.parse_args()
    record: dict[str, Any] = {**circumstances(), "arguments": {k: v for k, v in vars(arguments).items() if k != "out"}}
    record |= asyncio.run(measure(arguments))
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["summary"], indent=1))


class Bench:
    def __init__(self, served: Serving, arguments: argparse.Namespace) -> None:
        self.served = served
        self.tastes = FORMS if arguments.real else LETTERS
        self.names = list(self.tastes)[: arguments.lines]
        self.held_out = prompts()["held-out"][: arguments.eval]
        self._tokens = arguments.tokens
        self._places = asyncio.Semaphore(AT_ONCE)

    async def answer(self, line: str, question: str, seed: int | None = None) -> tuple[str, str, str]:
        """Its id, its text and the version that gave it."""
        model = "small" if line == "common" else f"small@{line}"
        seeded = {} if seed is None else {"seed": seed}
        async with self._places:
            body, version = await self.served.chat(question, model=model, max_tokens=self._tokens, **seeded)
        return body["id"], body["choices"][0]["message"]["content"], version

    async def rate(self, line: str, questions: list[str]) -> int:
        """How many of them were liked."""
        likes = self.tastes[line]

        async def rate_answer(question: str) -> bool:
            id, text, _ = await self.answer(line, question)
            await self.served.rate(id, "good" if likes(text) else "bad")
            return likes(text)

        return sum(await asyncio.gather(*(rate_answer(question) for question in questions)))

    async def replies(self, line: str) -> list[str]:
        numbered = enumerate(self.held_out, 1)
        answers = await asyncio.gather(*(self.answer(line, question, seed) for seed, question in numbered))
        return [text for _, text, _ in answers]

    async def status(self, line: str) -> dict[str, Any]:
        async with self.served.http.get(f"/rl/status?line={line}") as response:
            return dict(await response.json())

    async def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        async with self.served.http.post(path, json=body) as response:
            answer = await response.json()
            assert response.status < 300, answer
            return dict(answer)

    def server_bytes(self) -> int:
        """Resident memory of the model server."""
        for child in psutil.Process(self.served.process.pid).children(recursive=True):
            if "trainer.serve" in " ".join(child.cmdline()):
                return int(child.memory_info().rss)
        return 0


def share(likes: Likes, replies: list[str]) -> float:
    return sum(map(likes, replies)) / len(replies)


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lines-") as folder:
        home, began = Path(folder) / "home", time.monotonic()
        home.mkdir()
        model = weights.resolve(None).path
        if not arguments.real:
            model = await asyncio.to_thread(make_tiny_model, model, Path(folder) / "model")
        served = Serving(
            home,
            model,
            "--start-at",
            str(arguments.ratings),
            RLPROXY_TRAIN__STAND_STILL_S="0",
            RLPROXY_TRAIN__OVERRIDES=json.dumps({} if arguments.real else OVERRIDES),
        )
        await served.start()
        try:
            record = await _measured(Bench(served, arguments), arguments)
        finally:
            await served.stop()
        record["seconds"] = round(time.monotonic() - began, 1)
        return record


async def _measured(bench: Bench, arguments: argparse.Namespace) -> dict[str, Any]:
    questions = prompts()["rate"]
    base_replies = await bench.replies("common")
    memory = [bench.server_bytes()]
    good = {}
    for number, line in enumerate(bench.names):
        await bench.post("/rl/lines", {"name": line, "from": "base"})
        start = number * arguments.ratings
        line_questions = [questions[index % len(questions)] for index in range(start, start + arguments.ratings)]
        good[line] = await bench.rate(line, line_questions)
        print(f"{line}: {good[line]} of {arguments.ratings} liked", flush=True)
    learned, versions, order = await _after_each_run(bench, memory)
    at_the_end = {line: await bench.replies(line) for line in bench.names}
    common = await bench.replies("common")
    rolled_back = next((line for line in bench.names if versions[line]), bench.names[0])
    await bench.post(f"/rl/rollback?line={rolled_back}")
    after_rollback = {line: await bench.replies(line) for line in bench.names}
    sizes = {line["name"]: line["adapter_bytes"] for line in await _lines(bench)}
    rows = []
    for line in bench.names:
        likes = bench.tastes[line]
        first, last, final = learned[line], at_the_end[line], after_rollback[line]
        rows.append({
            "line": line,
            "version": versions[line],
            "good": good[line],
            "before": share(likes, base_replies),
            "after_its_run": share(likes, first),
            "at_the_end": share(likes, last),
            "moved_by_others": abs(share(likes, last) - share(likes, first)),
            "answers_changed_by_others": _changed(first, last),
            "all_tastes_moved_here": {
                name: share(taste, last) - share(taste, base_replies) for name, taste in bench.tastes.items()
            },
            "after_rollback_of_one": share(likes, final),
            "answers_changed_by_rollback": _changed(last, final),
            "adapter_bytes": sizes[line],
        })  # fmt: skip
    summary = _summary(rows, rolled_back, _changed(base_replies, common), memory)
    return {"lines": rows, "order_of_runs": order, "server_bytes": memory, "summary": summary}


def _changed(replies: Sequence[str], later_replies: Sequence[str]) -> int:
    return sum(a != b for a, b in zip(replies, later_replies, strict=True))


def _summary(
    rows: Sequence[dict[str, Any]], rolled_back: str, common_changed: int, memory: Sequence[int]
) -> dict[str, Any]:
    other_rows = [row for row in rows if row["line"] != rolled_back]
    back = next(row for row in rows if row["line"] == rolled_back)
    each_line = (memory[-1] - memory[1]) / (len(memory) - 2) if len(memory) > 2 else None
    return {
        "passed": sum(bool(row["version"]) for row in rows),
        "own_taste_before": round(sum(row["before"] for row in rows) / len(rows), 3),
        "own_taste_after": round(sum(row["at_the_end"] for row in rows) / len(rows), 3),
        "most_moved_by_others": max(row["moved_by_others"] for row in rows),
        "met": max(row["moved_by_others"] for row in rows) <= MOST_MOVED,
        "common_answers_changed": common_changed,
        "rolled_back": rolled_back,
        "rolled_back_share": [back["before"], back["at_the_end"], back["after_rollback_of_one"]],
        "others_answers_changed_by_rollback": sum(row["answers_changed_by_rollback"] for row in other_rows),
        "adapter_mb_a_line": round(max(row["adapter_bytes"] for row in rows) / 1e6, 1),
        "server_mb_a_line": None if each_line is None else round(each_line / 1e6, 1),
    }


async def _lines(bench: Bench) -> list[dict[str, Any]]:
    async with bench.served.http.get("/rl/lines") as response:
        return list((await response.json())["data"])


async def _after_each_run(
    bench: Bench, memory: list[int]
) -> tuple[dict[str, list[str]], dict[str, int | None], list[str]]:
    """The answers of each line right after its own run; its version, None where the gate refused; the order."""
    learned: dict[str, list[str]] = {}
    versions: dict[str, int | None] = {}
    order: list[str] = []
    async with asyncio.timeout(RUN_S):
        while len(versions) < len(bench.names):
            for line in bench.names:
                if line in versions:
                    continue
                status = await bench.status(line)
                last = status["last_run"]
                ended = last is not None and last["status"] in ("rejected", "empty", "failed")
                if not status["live"] and not ended:
                    continue
                versions[line] = status["live"] or None
                order.append(line)
                memory.append(bench.server_bytes())
                print(f"{line}: {last['status']}, v{status['live']}, {last['reason'] or ''}", flush=True)
                learned[line] = await bench.replies(line)
            await asyncio.sleep(1)
    return learned, versions, order


if __name__ == "__main__":
    main()
