"""Everything that only a GPU does, in under ten minutes on one card; what a CPU can do of it runs there too.

    python -m scripts.bench.gpu [--device cuda|cpu] [--part bf16,…] [--arch qwen3|llama|gemma|moe] [--small]

- `bf16` and `4bit`: log-probs and gradients beside float32
- `offload`: frozen layers on the CPU beside layers on the card, and the peak that it saves
- `tree`: FlexAttention against sequences one by one
- `packing`: seconds of a tree against single sequences
- `memory`: peak of a gradient
- `run`: a complete run of a random model of 4 B parameters, from its folder to its adapter
- `live`: `make demo QUICK=1`, seconds from rating to live

`--small` takes a model of some thousand parameters. Each part is in benchmarks/gpu.json at once (another device:
gpu_cpu.json, by architecture); one that fails says so there, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from config import presets
from config.languages import DEFAULT, language
from scripts.harness.circumstances import circumstances
from trainer import loop, mis_po
from trainer.formats import weights
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import Compute
from trainer.lessons.batch import score
from trainer.lessons.chat_template import Template
from trainer.mis_po import Terms
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "Why is the sky blue? Answer in a few sentences, and say what a child would understand of it. "
WIDE = dict.fromkeys(("margin_slack", "base_nll_rise", "text_nll_rise", "repetition_rise", "topic_fall"), 1000000.0)
ANY = WIDE | {"max_looping": 99, "min_length_ratio": 0.0, "max_length_ratio": 1e6, "min_entropy_ratio": 0.0}
# Shapes of about 4 B parameters with the small model's vocabulary, and of next to nothing.
ARCHS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "head_dim": 128}),
    "llama": ("llama", {"num_hidden_layers": 30, "hidden_size": 3072, "intermediate_size": 8192, "head_dim": 128}),
    "gemma": ("gemma2", {"num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216, "head_dim": 256}),
    "moe": ("qwen3_moe", {"num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 768, "head_dim": 128}),
}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 4096}
EXPERTS = {"moe_intermediate_size": 768, "num_experts": 16, "num_experts_per_tok": 4}
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "moe_intermediate_size": 32, "num_experts": 4}


def random_model(folder: Path, arch: str, *, small: bool, device: str) -> Path:
    """A folder with random weights of that architecture and the small model's tokenizer."""
    kind, shape = ARCHS[arch]
    tokenizer = AutoTokenizer.from_pretrained(weights.resolve(None).path)
    numbers = {**shape, **HEADS, **(EXPERTS if arch == "moe" else {})}
    if small:
        numbers |= {name: value for name, value in SMALL.items() if name in numbers}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 2}
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), tie_word_embeddings=True, **numbers, **ends)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if small else torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def opened(path: Path, compute: Compute = "float32", *, in_4bit: bool = False, offload: bool = False) -> TorchPolicy:
    policy = TorchPolicy(
        path, presets.resolve("balanced", {}), parent=None, threads=1, seed=0, compute=compute, in_4bit=in_4bit,
        offload=offload,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():  # half of the gradients are 0 where B is
        for name, parameter in policy.trained.items():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
    return policy


def rows(policy: TorchPolicy, count: int, prompt: int, reply: int) -> list[Tokens]:
    """Replies to one prompt of about so many tokens."""
    text = QUESTION + language(DEFAULT).text * 20
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    starts = [prompt + 17 * n for n in range(count)]
    return [
        Tokens(tuple(ids[:prompt]), tuple(ids[start : start + reply + n % 5]), 0.8) for n, start in enumerate(starts)
    ]


def gradient(policy: TorchPolicy, replies: list[Tokens]) -> np.ndarray:
    """(P,) of mean ℓ_θ over the replies, all adapters in one row."""
    for members in packing.group(replies, policy.budget):
        packed = packing.pack([replies[i] for i in members])
        unit = np.ones(len(packed.target))
        share = np.repeat([1 / (len(replies[i].reply) * len(replies)) for i in members], packed.lengths)
        loss = partial(mis_po.loss, kl_ref=0.0, guard_low=1e-9, guard_high=1e9)
        policy.backward(packed, Terms(-9 * unit, -9 * unit, unit, unit, share), loss)
    gradients = [p.grad.detach().float().cpu().numpy().ravel() for p in policy.trained.values() if p.grad is not None]
    for parameter in policy.trained.values():
        parameter.grad = None
    return np.concatenate(gradients)


def compare_format(path: Path, compute: Compute, *, in_4bit: bool = False) -> dict[str, Any]:
    """How far a number format is from float32: log-probs in nats a token, gradients as a cosine."""
    plain = opened(path)
    replies = rows(plain, 6, 40, 24)
    exact, straight = np.concatenate(score(plain, replies)), gradient(plain, replies)
    del plain
    policy = opened(path, compute, in_4bit=in_4bit)
    errors, leaning = np.abs(np.concatenate(score(policy, replies)) - exact), gradient(policy, replies)
    cosine = float(straight @ leaning / (np.linalg.norm(straight) * np.linalg.norm(leaning)))
    return {"mean_apart": float(errors.mean()), "most_apart": float(errors.max()), "cosine": cosine, "ok": cosine > 0.9}


def offloaded(path: Path, compute: Compute) -> dict[str, Any]:
    """Log-probs, gradients, and MiB at the peak, with layers on the card and with those that are fetched."""
    results, peaks = [], []
    for offload in (False, True):
        torch.cuda.reset_peak_memory_stats()
        policy = opened(path, compute, offload=offload)
        replies = rows(policy, 6, 40, 24)
        results.append((np.concatenate(score(policy, replies)), gradient(policy, replies)))
        peaks.append(torch.cuda.max_memory_allocated() / 2**20)
        del policy
        torch.cuda.empty_cache()
    (plain, straight), (fetched, leaning) = results
    distance = float(np.abs(plain - fetched).max())
    cosine = float(straight @ leaning / (np.linalg.norm(straight) * np.linalg.norm(leaning)))
    return {"most_apart": distance, "cosine": cosine, "peak_mib": dict(zip(("card", "fetched"), peaks, strict=True)),
            "ok": distance < 1e-3 and cosine > 0.999}  # fmt: skip


def tree(path: Path, compute: Compute) -> dict[str, Any]:
    """A prompt that many replies share, computed as a tree and one by one."""
    policy = opened(path, compute)
    replies = rows(policy, 6, 200, 24)
    shared = np.concatenate(score(policy, replies))
    single = np.concatenate([score(policy, [reply])[0] for reply in replies])
    differences = np.abs(shared - single)
    bound = 2e-3 if compute == "float32" else 0.5
    trees = bool(policy.budget.trees)
    return {"trees": trees, "mean_apart": float(differences.mean()), "most_apart": float(differences.max()),
            "ok": bool(differences.max() < bound)}  # fmt: skip


def trees(path: Path) -> dict[str, Any]:
    formats = {"float32": tree(path, "float32"), "bfloat16": tree(path, "bfloat16")}
    return {**formats, "ok": all(each["ok"] for each in formats.values())}


def packed_or_not(path: Path, compute: Compute, *, small: bool) -> dict[str, Any]:
    policy = opened(path, compute)
    replies = rows(policy, 8 if small else 32, 100 if small else 1500, 48)
    took = {}
    for name, parts in (("packed", [replies]), ("single", [[reply] for reply in replies])):
        began = time.perf_counter()
        for part in parts:
            gradient(policy, part)
        took[name] = time.perf_counter() - began
    return {**took, "ratio": took["packed"] / took["single"], "ok": True}


def memory(path: Path, compute: Compute) -> dict[str, Any]:
    """Peak of a gradient over 1,024 reply tokens, in MiB, over the loaded model."""
    policy = opened(path, compute)
    if policy.device != "cuda":
        return {"skipped": "only a GPU tells its peak; benchmarks/train.json has the CPU's", "ok": True}
    replies = rows(policy, 16, 200, 60)
    torch.cuda.reset_peak_memory_stats()
    loaded_bytes = torch.cuda.memory_allocated()
    gradient(policy, replies)
    peak = torch.cuda.max_memory_allocated()
    return {"loaded_mib": loaded_bytes / 2**20, "over_it_mib": (peak - loaded_bytes) / 2**20, "ok": True}


def run(path: Path, compute: Compute, *, in_4bit: bool, small: bool) -> dict[str, Any]:
    """32 ratings of a random model, from the run folder to the adapter."""
    home = Path(tempfile.mkdtemp(prefix="gpu-"))
    policy = opened(path, compute, in_4bit=in_4bit)
    template = Template(policy.tokenizer)
    prompts = [template.prompt([{"role": "user", "content": f"{QUESTION} {n}"}]) for n in range(32)]
    with policy.wearing(None):
        replies = policy.generate(prompts, max_tokens=12 if small else 64, temperature=0.8, seed=1)
        samples = [Tokens(p, tuple(r), 0.8) for p, r in zip(prompts, replies, strict=True)]
        logprobs = score(policy, samples)
    folder = home / "run"
    folder.mkdir()
    lines = [
        {
            "rating": f"rt-{n}", "completion": f"rl-{n}", "split": "held" if n % 8 == 7 else "train", "version": 0,
            "reward": 1.0 if sample.reply[0] % 2 else -1.0, "weight": 1.0, "human": True, "finish_reason": "length",
            "sampling": {"temperature": 0.8, "top_p": 1.0}, "exact": True, "prompt_token_ids": list(sample.prompt),
            "token_ids": list(sample.reply), "logprobs": each.tolist(), "text": template.text(sample.reply),
            "messages": [{"role": "user", "content": f"{QUESTION} {n}"}],
        }
        for n, (sample, each) in enumerate(zip(samples, logprobs, strict=True))
    ]  # fmt: skip
    del policy
    spec = {"format": 1, "run": 1, "model": "random", "weights": str(path), "version": 1, "parent": 0,
            "out": str(home / "v1"), "seed": 1, "threads": 1, "compute": compute, "load_in_4bit": in_4bit,
            "gate": ANY}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(spec))
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "calibration.jsonl").write_text("")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with Progress(folder) as progress:
        result = loop.run(folder, progress, Stop())
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None
    seconds = {name: value for name, value in result["metrics"].items() if name.startswith("seconds_")}
    return {"status": result["status"], "reason": result["reason"], "seconds": result["seconds"], **seconds,
            "peak_mib": peak, "ok": result["status"] == "passed"}  # fmt: skip


def live() -> dict[str, Any]:
    target = Path(tempfile.mkdtemp(prefix="gpu-")) / "demo.json"
    subprocess.run([sys.executable, "-m", "scripts.demo", "--quick", "--json", str(target)], cwd=ROOT, check=False)
    if not target.exists():
        return {"ok": False, "reason": "the demo made no version"}
    versions = json.loads(target.read_text(encoding="utf-8"))["versions"]
    took = [v["rating_to_live_s"] for v in versions if v["rating_to_live_s"]]
    return {"rating_to_live_s": took, "ok": bool(took)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--part", default="bf16,4bit,offload,tree,packing,memory,run,live")
    parser.add_argument("--arch", default="qwen3", choices=tuple(ARCHS))
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print("torch finds no GPU here: nothing was measured. What a CPU can do of it: --device cpu --small")
        return 1
    compute: Compute = "bfloat16" if cuda else "float32"
    path = random_model(
        Path(tempfile.mkdtemp(prefix="gpu-")) / "model", arguments.arch, small=arguments.small, device=arguments.device
    )
    small_model = path if arguments.small else weights.resolve(None).path
    no_cuda = {"skipped": "needs an NVIDIA GPU", "ok": True}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "bf16": lambda: compare_format(small_model, "bfloat16"),
        "4bit": lambda: compare_format(small_model, "bfloat16", in_4bit=True) if cuda else no_cuda,
        "offload": lambda: offloaded(path, compute) if cuda else no_cuda,
        "tree": lambda: trees(small_model),
        "packing": lambda: packed_or_not(small_model, compute, small=not cuda),
        "memory": lambda: memory(small_model, compute),
        "run": lambda: run(path, compute, in_4bit=False, small=arguments.small),
        "live": live,
    }
    whole = cuda and not arguments.small
    target = ROOT / "benchmarks" / ("gpu.json" if whole else f"gpu_{arguments.device}.json")
    name = torch.cuda.get_device_name() if cuda else "cpu"
    about: dict[str, Any] = {
        **circumstances(), "device": name, "torch": torch.__version__, "transformers": transformers.__version__,
        "arch": arguments.arch, "small": arguments.small, "parts": {},
    }  # fmt: skip
    for part in arguments.part.split(","):
        began = time.monotonic()
        try:
            figures = parts[part]()
        except Exception as error:  # one part that fails is a figure, and the others go on
            traceback.print_exc()
            figures = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        about["parts"][part] = figures | {"took_s": round(time.monotonic() - began, 1)}
        stored = {} if whole or not target.exists() else json.loads(target.read_text(encoding="utf-8"))
        target.write_text(json.dumps(about if whole else {**stored, arguments.arch: about}, indent=1) + "\n")
        print(part, json.dumps(about["parts"][part]), flush=True)
    return 0 if all(figures["ok"] for figures in about["parts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
