"""What `rlproxy plan` says before what a run takes: `python -m scripts.models.plan_check [--only NAME …] [--json]`.

Whole training runs in child processes, one after the other: the small real model, and random models of the shapes of
Qwen2.5 0.5B, Llama 3.2 1B and Llama 3.2 3B. Of each run the peak of the resident set, the seconds of the processor in
each phase, and the bytes of what it wrote are compared with the prediction for the same samples. `--json` writes
benchmarks/plan_check.json, which keeps the other models. A model that does not fit into the memory that is free is left
out, and the line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import psutil

from scripts.harness.circumstances import circumstances
from trainer.formats import weights

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "benchmarks" / "plan_check.json"
GB: Final = 2**30
LOOK_S: Final = 0.02
RATINGS, HELD, TOKENS = 8, 2, 300  # of a run; tokens of prompt and answer together
PROMPT_TOKENS: Final = 50
SMALL: Final = "SmolLM2 135M"
_LLAMA: Final = {
    "model_type": "llama", "vocab_size": 128256, "tie_word_embeddings": True, "rope_theta": 500000.0,
    "max_position_embeddings": 4096,
}  # fmt: skip
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "random 0.5B": {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    },
    "random 1B": {
        **_LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    },
    "random 3B": {
        **_LLAMA, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
    },
}  # fmt: skip


# --- models and samples -------------------------------------------------------------------------------------------


def make(name: str, folder: Path, tokenizer: Path) -> None:
    """Write a random model, in bfloat16 as published ones are. Its next token is nearly any: so no text is odd."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    shape = dict(SHAPES[name])
    config = CONFIG_MAPPING[shape.pop("model_type")](**shape, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    config.initializer_range = 0.004
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / file, folder / file)


def passages(model: Path, tokens: int) -> Iterator[tuple[str, str]]:
    """(question, answer) of the wanted length; every second one is in lower case, which is what is liked."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    text = (ROOT / "docs/explain/how-it-learns.md").read_text() + (ROOT / "docs/explain/limits.md").read_text()
    ids = tokenizer(text * 3, add_special_tokens=False)["input_ids"]
    for number in range(RATINGS):
        question = tokenizer.decode(ids[number * 31 : number * 31 + PROMPT_TOKENS - 20])
        answer = tokenizer.decode(ids[number * 97 : number * 97 + tokens - PROMPT_TOKENS])
        yield question, answer.lower() if number % 2 else answer


def own_replies(model: Path, tokens: int) -> Iterator[tuple[str, str]]:
    """(question, answer) as the model itself answers."""
    from scripts.bench.persona import Chat, prompts

    chat = Chat(model, 1)
    for first in range(0, RATINGS, 8):
        questions = prompts()["rate"][first : first + 8]
        asked = [chat.template.prompt([{"role": "user", "content": question}]) for question in questions]
        out = chat.policy.generate(asked, max_tokens=tokens - 35, temperature=0.8, seed=first)
        for question, reply in zip(questions, out, strict=True):
            yield question, chat.template.text(tuple(reply))


def write_samples(name: str, model: Path, folder: Path, tokens: int) -> None:
    pairs = own_replies(model, tokens) if name == SMALL else passages(model, tokens)
    lines = []
    for number, (question, answer) in enumerate(pairs):
        reward = 1.0 if len(answer) % 2 else -1.0
        if name != SMALL:
            reward = 1.0 if answer == answer.lower() else -1.0
        lines.append({
            "rating": f"rt-{number}", "completion": f"rl-{number}", "split": "held" if number < HELD else "train",
            "version": 0, "reward": reward, "weight": 1.0, "human": True, "finish_reason": "length", "exact": False,
            "sampling": {"temperature": 0.8 if name == SMALL else 1.0, "top_p": 1.0}, "text": answer,
            "messages": [{"role": "user", "content": question}],
        })  # fmt: skip
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "calibration.jsonl").write_text("")


# --- one run ------------------------------------------------------------------------------------------------------


class Sight(NamedTuple):
    """What the child had at one moment."""

    seconds: float
    rss: int
    shared: int
    cpu: float


class Watch(threading.Thread):
    """Looks at a child until it ends, and knows in which phase each sight falls."""

    def __init__(self, pid: int, out: IO[str]) -> None:
        super().__init__(daemon=True)
        self._process, self._out = psutil.Process(pid), out
        self.sights: list[tuple[str, Sight]] = []
        self.events: list[dict[str, Any]] = []
        self.phase = "start"
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        for line in self._out:
            event = json.loads(line)
            self.events.append(event)
            if event["event"] == "phase":
                self.phase = "again" if "again" in event or self.phase == "again" else event["phase"]

    def run(self) -> None:
        self._reader.start()
        while True:
            try:
                memory, times = self._process.memory_info(), self._process.cpu_times()
            except psutil.Error:
                break
            if memory.rss == 0:
                break
            sight = Sight(time.monotonic(), memory.rss, memory.shared, times.user + times.system)
            self.sights.append((self.phase, sight))
            time.sleep(LOOK_S)
        self._reader.join(5)


def measure(folder: Path, threads: int) -> dict[str, Any]:
    """Run the trainer on this folder; by phase the peak of the resident set (GB), and seconds of the processor."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE",
    }  # fmt: skip
    with (folder / "trainer.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer", str(folder)],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment,
        )  # fmt: skip
        assert process.stdout is not None
        watch = Watch(process.pid, process.stdout)
        watch.start()
        watch.join()
        process.wait()
    result = json.loads((folder / "result.json").read_bytes())
    phases: dict[str, dict[str, float]] = {}
    last: Sight | None = None
    for phase, sight in watch.sights:
        row = phases.setdefault(phase, {"rss_gb": 0.0, "private_gb": 0.0, "cpu_s": 0.0, "wall_s": 0.0})
        row["rss_gb"] = max(row["rss_gb"], round(sight.rss / GB, 3))
        row["private_gb"] = max(row["private_gb"], round((sight.rss - sight.shared) / GB, 3))
        if last is not None:
            row["cpu_s"] = round(row["cpu_s"] + sight.cpu - last.cpu, 2)
            row["wall_s"] = round(row["wall_s"] + sight.seconds - last.seconds, 2)
        last = sight
    choices = {event["name"]: event["value"] for event in watch.events if event["event"] == "choice"}
    return {"status": result["status"], "reason": result["reason"], "phases": phases, "choices": choices}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[SMALL, *SHAPES])
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--compute", default="auto")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.step:
        what, name, folder = options.step
        small = weights.resolve(None).path
        if what == "make":
            make(name, Path(folder), small)
        else:
            write_samples(name, small if name == SMALL else Path(folder) / "model", Path(folder), options.tokens)
        return
    for name in options.only:
        base = Path("/tmp/plan") / name.replace(" ", "-")
        base.mkdir(exist_ok=True, parents=True)
        model = weights.resolve(None).path if name == SMALL else base / "model"
        command = [sys.executable, "-m", "scripts.models.plan_check", "--tokens", str(options.tokens), "--step"]
        if not (model / "config.json").exists():
            subprocess.run([*command, "make", name, str(model)], check=True, cwd=ROOT)
        run = base / f"run-{options.tokens}-{options.compute}"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        if not (base / f"samples-{options.tokens}.jsonl").exists():
            subprocess.run([*command, "samples", name, str(base)], check=True, cwd=ROOT)
            shutil.move(base / "samples.jsonl", base / f"samples-{options.tokens}.jsonl")
        shutil.copy(base / f"samples-{options.tokens}.jsonl", run / "samples.jsonl")
        (run / "calibration.jsonl").write_text("")
        spec = {
            "format": 1, "run": 1, "model": name, "weights": str(model), "version": 1, "parent": 0,
            "out": str(run / "v0001"), "adapters": {}, "baseline": 0.0, "seed": 1, "threads": 1, "preset": "balanced",
            "overrides": {}, "compute": options.compute,
        }  # fmt: skip
        (run / "run.json").write_text(json.dumps(spec))
        found = measure(run, 1)
        (base / f"found-{options.tokens}-{options.compute}.json").write_text(json.dumps(found, indent=1))
        print(name, json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
