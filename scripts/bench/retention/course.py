"""A course: tastes in sequence on one line of versions, so many rounds of ratings each, examined after every run.

Owns the order of questions and the file that a killed course goes on from. Not here: what is asked of a version
(shares), what the figures come to (table).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scripts.bench.persona import Chat, Persona, prompts, rate
from scripts.bench.retention.shares import Examiner
from scripts.bench.version_line import VersionLine
from trainer.io.run_folder import write_atomic

HELD_SHARE: Final = 1 / 8  # of a round's ratings, kept back for the gate


@dataclass(frozen=True)
class Plan:
    """One course. A taste alone takes the questions and draws that it has in the sequence."""

    seed: int
    rounds: int  # of each taste
    ratings: int  # a round
    threads: int
    preset: str
    overrides: dict[str, Any]


class Course:
    def __init__(
        self,
        chat: Chat,
        examiner: Examiner,
        tastes: Sequence[Persona],
        plan: Plan,
        home: Path,
        about: dict[str, Any],
        skipped: int = 0,
    ) -> None:
        """home: what a killed course goes on from. about: date, machine, arguments. skipped: tastes of the sequence
        that come before these."""
        self._chat = chat
        self._examiner = examiner
        self._tastes = tastes
        self._plan = plan
        self._skipped = skipped
        self._file = home / "course.json"
        home.mkdir(parents=True, exist_ok=True)
        self._settings = {**asdict(plan), "tastes": [taste.name for taste in tastes], "skipped": skipped}
        saved: dict[str, Any] = {"settings": self._settings, "about": about, "rounds": [], "line": None}
        if self._file.exists():
            saved = json.loads(self._file.read_bytes())
            if saved["settings"] != self._settings:
                raise SystemExit(f"{home} holds a course of other settings: remove it, or give another --name.")
        self._about: dict[str, Any] = saved["about"]
        self._rounds: list[dict[str, Any]] = saved["rounds"]
        self._line = VersionLine(
            chat.weights, plan.preset, plan.overrides, seed=plan.seed, threads=plan.threads, home=home,
            state=saved["line"],
        )  # fmt: skip

    @property
    def record(self) -> dict[str, Any]:
        return {**self._about, "preset": self._line.preset.model_dump(), "rounds": self._rounds}

    @property
    def remaining(self) -> int:
        return self._plan.rounds * len(self._tastes) - len(self._rounds)

    def go_on(self) -> Iterator[dict[str, Any]]:
        """Each further round, after it was written down."""
        while self.remaining:
            self._rounds.append(self._round(len(self._rounds)))
            saved = {
                "settings": self._settings,
                "about": self._about,
                "rounds": self._rounds,
                "line": self._line.state,
            }
            write_atomic(self._file, json.dumps(saved, ensure_ascii=False).encode())
            yield self._rounds[-1]

    def _round(self, index: int) -> dict[str, Any]:
        start, plan = time.monotonic(), self._plan
        taste = self._taste(index)
        lines = rate(
            self._chat,
            taste,
            self.questions(index),
            self._line.adapter,
            version=self._line.version,
            seed=plan.seed * 1000 + self._place(index),
            held=round(plan.ratings * HELD_SHARE),
            comments=False,
        )
        good, rating_seconds = sum(line["reward"] > 0 for line in lines), time.monotonic() - start
        result = self._line.learn(lines)
        return {
            "taste": taste.name,
            "good": good,
            "rating_seconds": rating_seconds,
            "run": result,
            "version": self._line.version,
            "marks": self._marks(),
        }

    def _marks(self) -> dict[str, Any]:
        """A version has its marks once: a run that is rejected leaves them as they were."""
        marks: dict[str, Any] | None = None
        if self._rounds and self._rounds[-1]["version"] == self._line.version:
            marks = self._rounds[-1]["marks"]
        return marks or self._examiner.examine(self._line.adapter)

    def questions(self, index: int) -> list[str]:
        """Those of this round, from where its taste stands in the whole sequence."""
        texts = prompts()[f"rate {self._taste(index).prompts}".strip()]
        order = random.Random(self._plan.seed).sample(texts, len(texts))
        first = self._place(index) * self._plan.ratings
        return [order[i % len(order)] for i in range(first, first + self._plan.ratings)]

    def _taste(self, index: int) -> Persona:
        return self._tastes[index // self._plan.rounds]

    def _place(self, index: int) -> int:
        return index + self._skipped * self._plan.rounds
