"""Compare `rlproxy plan` with whole training runs: `python -m scripts.models.plan_check [--only NAME …] [--json]`.

The runs are child processes, one after the other. Their models are the small real one, and random ones of the shapes of
Qwen2.5 0.5B and Llama 3.2 1B and 3B. Measured are the peak of the memory that comes free with a run, seconds of the
processor by phase, and bytes written. The prediction is for the same samples. `--json` writes
benchmarks/plan_check.json, which keeps the other models, and the plans of published models on cards. A model that does
not fit into the memory that is free is left out, and the line says so.
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
from statistics import median
from typing import IO, Any, Final, NamedTuple

import psutil

from scripts.harness.circumstances import circumstances
from scripts.models import published
from trainer import estimate
from trainer.estimate import EstimateRequest, Hardware
from trainer.formats import weights
from trainer.policy.footprint import Workload

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "benchmarks" / "plan_check.json"
GB: Final = 2**30
LOOK_S: Final = 0.02
OWN_REPLIES, RATINGS, FOR_GATE = 32, 8, 8  # of a run: of the real model, of a random one; one of 8 is for the gate
TOKENS = 300  # of prompt and answer together
CARDS, RAM = (16, 24, 80), 64 * GB
PROMPT_TOKENS: Final = 50
SMALL: Final = "SmolLM2 135M"
_LLAMA: Final = {
    "model_type": "llama", "vocab_size": 128256, "tie_word_embeddings": True, "rope_theta": 500000.0,
    "max_position_embeddings": 4096,
}  # fmt: skip
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {  # `bytes`: of memory that must be free
    "random 0.5B": {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "max_position_embeddings": 4096, "bytes": 6 * GB,
    },
    "random 1B": {
        **_LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "bytes": 9 * GB,
    },
    "random 3B": {
        **_LLAMA, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "bytes": 19 * GB,
    },
}  # fmt: skip


# --- models and samples -------------------------------------------------------------------------------------------


def make(name: str, folder: Path, tokenizer: Path) -> None:
    """Write a random model, in bfloat16 as published ones are. Its next token is nearly any: so no text is odd."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    shape = {key: value for key, value in SHAPES[name].items() if key != "bytes"}
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
    for first in range(0, OWN_REPLIES, 8):
        questions = prompts()["rate"][first : first + 8]
        prompts_ids = [chat.template.prompt([{"role": "user", "content": question}]) for question in questions]
        out = chat.policy.generate(prompts_ids, max_tokens=tokens - 35, temperature=0.8, seed=first)
        for question, reply in zip(questions, out, strict=True):
            yield question, chat.template.text(tuple(reply))


def write_samples(name: str, model: Path, folder: Path, tokens: int) -> None:
    pairs = list(own_replies(model, tokens) if name == SMALL else passages(model, tokens))
    middle = median(len(answer) for _, answer in pairs)
    lines = []
    for number, (question, answer) in enumerate(pairs):
        is_liked = len(answer) < middle if name == SMALL else answer == answer.lower()
        split = "held" if number < len(pairs) // FOR_GATE else "train"
        lines.append({
            "rating": f"rt-{number}", "completion": f"rl-{number}", "split": split,
            "version": 0, "reward": 1.0 if is_liked else -1.0, "weight": 1.0, "human": True,
            "finish_reason": "length", "exact": False,
            "sampling": {"temperature": 0.8 if name == SMALL else 1.0, "top_p": 1.0}, "text": answer,
            "messages": [{"role": "user", "content": question}],
        })  # fmt: skip
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "calibration.jsonl").write_text("")


# --- one run ------------------------------------------------------------------------------------------------------


class Sight(NamedTuple):
    """One look at the child."""

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


# --- the prediction -----------------------------------------------------------------------------------------------


def predict(model: Path, folder: Path, free: int, threads: int) -> dict[str, Any]:
    """The plan of a run on these samples, with as much memory free as there was."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    lengths = [
        len(tokenizer.apply_chat_template(line["messages"], add_generation_prompt=True)["input_ids"])
        + len(tokenizer(line["text"], add_special_tokens=False)["input_ids"])
        for line in lines
    ]
    hardware = Hardware(None, round(free / (1 - estimate.RESERVED)), rounds=estimate.rounds_products())
    # Memory follows from the longest, time from all of them.
    longest, typical = max(lengths), round(sum(lengths) / len(lengths))
    of_memory, of_time = (
        estimate.of(model, EstimateRequest("openai", hardware, Workload(len(lines), tokens)))
        for tokens in (longest, typical)
    )
    duration = estimate.duration(of_time, threads)
    way = of_memory.ways[0]
    assert duration is not None
    return {
        "ratings": len(lines), "longest": longest, "typical": typical,
        "parts_gb": {name: round(size / GB, 3) for name, size in way.memory._asdict().items()},
        "gb": round(way.memory.total / GB, 3), "seconds": round(duration.seconds, 1),
        "adapter_bytes": of_memory.versions[0].served, "kept_bytes": of_memory.versions[0].stored,
    }  # fmt: skip


def compare(name: str, model: Path, samples: Path, threads: int) -> dict[str, Any]:
    """One run, and predicted ÷ measured."""
    about = circumstances()
    with tempfile.TemporaryDirectory(prefix="plan-check-") as temporary:
        folder = Path(temporary)
        shutil.copy(samples, folder / "samples.jsonl")
        (folder / "calibration.jsonl").write_text("")
        spec = {
            "format": 1, "run": 1, "model": name, "weights": str(model), "version": 1, "parent": 0,
            "out": str(folder / "v0001"), "adapters": {}, "baseline": 0.0, "seed": 1, "threads": threads,
            "preset": "balanced", "overrides": {},
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(spec))
        predicted = predict(model, folder, psutil.virtual_memory().available, threads)
        measured = measure(folder, threads)
        version = folder / ("v0001" if measured["status"] == "passed" else "rejected")
        if not version.exists():
            raise SystemExit(f"{name}: the run ended {measured['status']}: {measured['reason']}")
        measured["adapter_bytes"] = (version / "adapter_model.safetensors").stat().st_size
        optimiser = version / "optimiser.safetensors"
        measured["kept_bytes"] = measured["adapter_bytes"] + (optimiser.stat().st_size if optimiser.exists() else 0)
    first_try = [row for phase, row in measured["phases"].items() if phase != "again"]
    measured["gb"] = max(row["private_gb"] for row in measured["phases"].values())
    measured["rss_gb"] = max(row["rss_gb"] for row in measured["phases"].values())
    measured["cpu_s"] = round(sum(row["cpu_s"] for row in first_try), 1)
    ratios = {
        "memory": round(predicted["gb"] / measured["gb"], 2),
        "time": round(predicted["seconds"] / measured["cpu_s"], 2),
        "adapter": round(predicted["adapter_bytes"] / measured["adapter_bytes"], 3),
    }
    return {**about, "predicted": predicted, "measured": measured, "ratios": ratios}


def published_rows() -> list[dict[str, Any]]:
    """Published models on cards of 16, 24 and 80 GB, computed: no card was there."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in published.CONFIGS:
            path = published.write(name, Path(folder))
            for server in ("vllm", "ollama"):
                for gb in CARDS:
                    plan = estimate.of(path, EstimateRequest(server, Hardware(gb * GB, RAM), Workload(32, TOKENS)))
                    rows.append({
                        "model": name, "server": server, "card_gb": gb, "serving": plan.serving.total,
                        "serves": plan.serves, "advised": plan.advised and plan.advised.name,
                        "beside": bool(plan.advised and plan.advised.fits_beside),
                        "ways": {way.name: way.memory.total for way in plan.ways},
                        "ram": plan.ways[-1].ram, "version": plan.version and plan.version.served,
                    })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[SMALL, *SHAPES])
    parser.add_argument("--folder", type=Path, help="keeps models and samples here, to be used again")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step, name, folder = options.step
        small = weights.resolve(None).path
        if step == "make":
            make(name, Path(folder), small)
        else:
            write_samples(name, small if name == SMALL else Path(folder) / "model", Path(folder), TOKENS)
        return
    with tempfile.TemporaryDirectory(prefix="plan-models-") as temporary:
        for name in options.only:
            result = _check(name, options.folder or Path(temporary), options.threads)
            print(name, json.dumps(result.get("ratios", result)), flush=True)
            if options.json and "ratios" in result:
                _keep(models={name: result})
    if options.json:
        _keep(published=published_rows())


def _check(name: str, folder: Path, threads: int) -> dict[str, Any]:
    """In the folder, with its model and samples made by children, so that nothing of it is in this process."""
    place = folder / name.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    needed = SHAPES[name]["bytes"] if name in SHAPES else 0
    if (free := psutil.virtual_memory().available) < needed:
        return {"left out": f"it needs {needed / GB:.0f} GB of memory, and {free / GB:.0f} GB are free"}
    model = weights.resolve(None).path if name == SMALL else place / "model"
    command = [sys.executable, "-m", "scripts.models.plan_check", "--step"]
    if not (model / "config.json").exists():
        subprocess.run([*command, "make", name, str(model)], check=True, cwd=ROOT)
    if not (place / "samples.jsonl").exists():
        subprocess.run([*command, "samples", name, str(place)], check=True, cwd=ROOT)
    return compare(name, model, place / "samples.jsonl", threads)


def _keep(**members: Any) -> None:
    report: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for member, value in members.items():
        report[member] = {**report.get(member, {}), **value} if isinstance(value, dict) else value
    FILE.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
