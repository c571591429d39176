"""A run stored in a model file no larger than the one that it was trained on: how much of it is left.

`python -m scripts.models.version_size RUN_FOLDER ADAPTER [--types Q4_0 Q4_1 Q8_0]` takes a run that has ended, its
samples, and its adapter. It stores the weights in each type, and adds the adapter to them in several ways. *Off* is
the mean distance of the replies' log-probs to those of the quantised weights with the whole adapter. *Margin* is by how
much liked replies rose over disliked ones. benchmarks/version_size.json gets the figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from scripts.harness.circumstances import circumstances
from trainer.formats import grid
from trainer.formats.weights import resolve

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "version_size.json"
Floats = NDArray[np.float32]
Store = Callable[[str], Floats]  # the weights of a layer, by its name


class Replies:
    """The replies of a run's samples, and what the model gives their tokens."""

    def __init__(self, model: torch.nn.Module, run: Path, most: int) -> None:
        lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
        self._model, self._lines = model, [line for line in lines if line["exact"]][:most]
        self.liked = np.concatenate([[line["reward"] > 0] * len(line["token_ids"]) for line in self._lines])

    @torch.no_grad()
    def log_probs(self) -> Floats:
        """(N,) of all their tokens."""
        parts = []
        for line in self._lines:
            reply = torch.tensor(line["token_ids"])
            ids = torch.cat([torch.tensor(line["prompt_token_ids"]), reply])
            logits = self._model(ids[None]).logits[0, -len(reply) - 1 : -1].float()
            parts.append(torch.log_softmax(logits, -1).gather(1, reply[:, None])[:, 0].numpy())
        return np.concatenate(parts)

    def margin(self, moved: Floats) -> float:
        """By how much more liked tokens rose than disliked ones, nats."""
        return float(moved[self.liked].mean() - moved[~self.liked].mean())


def deltas_of(adapter: Path) -> dict[str, Floats]:
    """The adapter's change of each layer, (out, in)."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    rank = config["r"] ** 0.5 if config.get("use_rslora") else config["r"]
    tensors = load_file(adapter / "adapter_model.safetensors")
    return {
        name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): np.asarray(
            config["lora_alpha"] / rank * (tensors[name.replace("lora_A", "lora_B")] @ a), np.float32
        )
        for name, a in tensors.items()
        if ".lora_A." in name
    }


def stored(weights: Floats, kind: Type) -> Floats:
    return np.asarray(gguf.dequantize(gguf.quantize(weights, kind), kind), np.float32)


def on_grid(weights: Floats, delta: Floats, kind: Type) -> Floats:
    """The way of merge_gguf."""
    rows = gguf.quantize(weights, kind)
    return np.asarray(gguf.dequantize(grid.shifted(rows, kind, delta, np.random.default_rng(0)), kind), np.float32)


def measure(model: torch.nn.Module, replies: Replies, deltas: Mapping[str, Floats], kind: Type) -> dict[str, Any]:
    layers = dict(model.named_modules())
    whole = {name: layers[name].weight.detach().numpy().copy() for name in deltas}
    base = {name: stored(weights, kind) for name, weights in whole.items()}

    def moved_by(store: Store) -> Floats:
        for name in deltas:
            layers[name].weight.data = torch.from_numpy(np.ascontiguousarray(store(name)))
        return replies.log_probs()

    unquantised = moved_by(lambda name: whole[name])
    start = moved_by(lambda name: base[name])
    exact = moved_by(lambda name: base[name] + deltas[name])
    larger = Type.F16 if kind is Type.Q8_0 else Type.Q8_0
    ways: dict[str, Store] = {
        "the same type, new scales": lambda name: stored(base[name] + deltas[name], kind),
        "the same grid, at random": lambda name: on_grid(whole[name], deltas[name], kind),
        f"a larger type, {larger.name}": lambda name: stored(base[name] + deltas[name], larger),
    }
    rows = {}
    for way, store in ways.items():
        log_probs = moved_by(store)
        rows[way] = {
            "off": float(np.abs(log_probs - exact).mean()),
            "margin": replies.margin(log_probs - start),
        }
        print(kind.name, way, rows[way], flush=True)
    moved_by(lambda name: whole[name])
    return {
        "quantisation": float(np.abs(start - unquantised).mean()),
        "run": float(np.abs(exact - start).mean()),
        "margin": replies.margin(exact - start),
        "tokens": len(start),
        "ways": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.models.version_size", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run whose samples are exact")
    parser.add_argument("adapter", type=Path, help="the adapter that it made")
    parser.add_argument("--types", nargs="+", default=["Q4_0", "Q4_1", "Q8_0"])
    parser.add_argument("--samples", type=int, default=1000, help="at most so many of the run's, the newest first")
    arguments = parser.parse_args()
    record = circumstances()
    weights = json.loads((arguments.run / "run.json").read_text())["weights"]
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(resolve(weights).path, dtype=torch.float32).eval()
    replies, deltas = Replies(model, arguments.run, arguments.samples), deltas_of(arguments.adapter)
    record["types"] = {kind: measure(model, replies, deltas, Type[kind]) for kind in arguments.types}
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
