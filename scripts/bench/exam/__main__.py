"""An exam that somebody else set: steps of four sentences of feedback, and what the model complies with after each.

    python -m scripts.bench.exam [--preferences concise,identity] [--weights FOLDER] [--steps 20] [--seed 1]

After CLaaS's evaluation (2606.05559, claas/eval), written anew: a step asks four questions. A reply that does not
comply gets one fixed sentence as a comment; one that complies is liked. Each step is one run with its gate. Unlike
there, the probes are never rated. Their published picture (concise, Qwen3-30B-A3B): 0 until step 10, peak 0.83,
end 0.61. Writes benchmarks/exam/PREFERENCE-MODEL-seedN.json and prints a line a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import asdict
from typing import Any, Final

from scripts.bench.exam import capability, collapse
from scripts.bench.exam.preferences import Preference, preferences
from scripts.bench.persona import MAX_TOKENS, ROOT, TEMPERATURE, Chat, Persona, answers
from scripts.bench.version_line import VersionLine, overrides_of
from scripts.harness.circumstances import circumstances, machine_name
from trainer.formats import weights
from trainer.policy.packing import Tokens

SENTENCES: Final = 4  # of feedback a step
HELD_EVERY: Final = 2  # steps, in which one rated answer is kept back for the gate
SAMPLES: Final = 3  # of each probe
WHOLE_EVERY: Final = 5  # steps: capability and collapse, which take long
PROBE_SEED: Final = 1000
COMPLIES: Final = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preferences", default="concise,no_emoji,identity")
    parser.add_argument("--weights", help="a folder or a hub id instead of the small model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a preset value")
    parser.add_argument("--name", default="", help="of a variant: a part of the file's name")
    arguments = parser.parse_args()
    source, choices = weights.resolve(arguments.weights), preferences()
    chat = Chat(source.path, arguments.threads)
    for name in arguments.preferences.split(","):
        if name not in choices:
            raise SystemExit(f"Unknown preference {name!r}: choose from {', '.join(choices)}.")
        Exam(chat, name, choices[name], arguments).sit()


class Exam:
    """One preference, from the base on."""

    def __init__(self, chat: Chat, name: str, preference: Preference, arguments: argparse.Namespace) -> None:
        self._chat = chat
        self._name = name
        self._preference = preference
        self._arguments = arguments
        self._commenter = Commenter(preference)
        seed = arguments.seed
        self._order = random.Random(seed).sample(preference.questions, len(preference.questions))
        overrides = overrides_of(arguments.set)
        self._line = VersionLine(chat.weights, arguments.preset, overrides, seed=seed, threads=arguments.threads)
        variant = f"-{arguments.name}" if arguments.name else ""
        self._target = ROOT / "benchmarks/exam" / f"{name}-{chat.weights.name}-seed{seed}{variant}.json"

    def sit(self) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {
            **circumstances(),
            "machine": f"{machine_name()}, {self._arguments.threads} threads",
            "model": self._chat.weights.name,
            "preference": self._name,
            "feedback": self._preference.feedback,
            "arguments": vars(self._arguments),
            "base": self.examine(whole=True),
            "steps": [],
        }
        print(f"{self._name}: base {summary(record['base'], record['base'])}", flush=True)
        for step in range(1, self._arguments.steps + 1):
            rated = self.rate(step)
            result = self._line.learn(rated)
            marks = self.examine(whole=step % WHOLE_EVERY == 0)
            comments = sum(line["comment"] is not None for line in rated)
            record["steps"].append({"comments": comments, "run": result, "marks": marks})
            self._target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            print(
                f"  step {step}, {comments} comments: {result['status']}, {summary(marks, record['base'])}, "
                f"run {result['wall']:.0f} s, {result['reason']}",
                flush=True,
            )

    def rate(self, step: int) -> list[dict[str, Any]]:
        """The lines of a samples.jsonl: one step's answers of the live version, rated."""
        first = (step - 1) * SENTENCES
        questions = [self._order[i % len(self._order)] for i in range(first, first + SENTENCES)]
        lines = answers(
            self._chat,
            self._commenter,
            [[{"role": "user", "content": question}] for question in questions],
            self._line.adapter,
            version=self._line.version,
            seed=self._arguments.seed * 1000 + step,
            comments=True,
        )
        if step % HELD_EVERY == 0:
            lines[-1]["split"] = "held"
        return lines

    def examine(self, *, whole: bool) -> dict[str, Any]:
        """Marks of the live version: the same questions and seeds each time. whole: also what takes long."""
        start, chat = time.monotonic(), self._chat
        probes = [chat.template.prompt([{"role": "user", "content": probe}]) for probe in self._preference.probes]
        prompts, seeds = probes * SAMPLES, [PROBE_SEED + i for i in range(len(probes) * SAMPLES)]
        with chat.policy.wearing(self._line.adapter):
            sampled = chat.policy.generate(prompts, max_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=seeds)
            replies = [Tokens(p, tuple(r), TEMPERATURE) for p, r in zip(prompts, sampled, strict=True)]
            texts = [str(chat.said(reply)) for reply in replies]
            marks: dict[str, Any] = {
                "compliance": sum(map(self._preference.comply, texts)) / len(texts),
                "replies": texts[: len(probes)],
            }
            if whole:
                by_probe = [replies[i :: len(probes)] for i in range(len(probes))]
                marks["collapse"] = asdict(collapse.measure(chat, by_probe))
                marks["capability"] = asyncio.run(capability.measure(self._solve()))
        return marks | {"seconds": time.monotonic() - start}

    def _solve(self) -> dict[str, str]:
        """Replies to the tasks of capability, without chance."""
        chat, tasks = self._chat, [capability.PROGRAM, *capability.INSTRUCTIONS]
        prompts = [chat.template.prompt([{"role": "user", "content": task}]) for task in tasks]
        replies = chat.policy.generate(prompts, max_tokens=capability.TOKENS, temperature=0, seed=0)
        return {task: chat.template.text(reply) for task, reply in zip(tasks, replies, strict=True)}


class Commenter(Persona):
    """Says the preference's sentence of what does not comply, and likes the rest."""

    def __init__(self, preference: Preference) -> None:
        self.name = "commenter"
        self.rate = lambda question, reply: 1.0 if preference.comply(reply) >= COMPLIES else -1.0
        self.comment = lambda question, reply: preference.feedback if preference.comply(reply) < COMPLIES else None


def summary(marks: dict[str, Any], base: dict[str, Any]) -> str:
    text = f"compliance {marks['compliance']:.2f}"
    if "collapse" not in marks:
        return text
    solved, health, start = marks["capability"].values(), marks["collapse"], base["collapse"]
    return (
        f"{text}, capability {sum(solved)} of {len(solved)}, "
        f"entropy × {health['entropy'] / start['entropy']:.2f}, self-ROUGE-L {health['self_rouge_l']:.2f}, "
        f"drift {health['log_prob'] - start['log_prob']:+.2f}"
    )


if __name__ == "__main__":
    main()
