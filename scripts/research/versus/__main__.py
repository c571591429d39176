"""Beside ReinforceClaw 0.1.0 and a plain REINFORCE: what each learns from as many ratings, and what a rating costs.

    python -m scripts.research.versus learning --seeds 1 [--only ours,reinforce]
    python -m scripts.research.versus cost

`learning`: three rounds of 32 ratings by the persona `concise`, each trainer on its own model's replies to the same
prompts with the same seeds. How likely the held-out replies are to end, computed (learn_lab), after each round; the
sampled liked share and sanity after the last. `cost`: CPU seconds and peak memory of two trainings, each in a process
of its own. One has 32 short samples, the other 8 that share a prompt of 1,500 tokens. Every entry goes to
benchmarks/versus.json as soon as it is there, over the one of the same name before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import transformers

from config.languages import DEFAULT, language
from scripts.bench.persona import ROOT, Chat, Persona, prompts, rate
from scripts.harness.circumstances import circumstances
from scripts.research import learn_lab
from scripts.research.poison import line
from scripts.research.reply_pool import PoolReply, pool
from scripts.research.versus.trainers import TRAINERS, Round
from trainer.formats import weights
from trainer.policy.packing import Tokens

TARGET = ROOT / "benchmarks/versus.json"
RATINGS, HELD_OUT = 32, 40
# ReinforceClaw as shipped takes 8 of the 32 ratings that wait and steps 32 times, one sample a step. `all` has it take
# all 32 once, and is tried at several rates.
ALL = {"batch_size": 32, "batch_min": 1}
ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("ours", {}),
    "reinforceclaw as shipped": ("reinforceclaw", {}),
    **{f"reinforceclaw all, {rate:g}": ("reinforceclaw", ALL | {"lr": rate}) for rate in (8e-6, 1e-4, 3e-4, 1e-3)},
    **{f"reinforce, {rate:g}": ("reinforce", {"lr": rate}) for rate in (3e-4, 1e-3)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("learning", "cost"))
    parser.add_argument("--only", default=";".join(ENTRIES), help="entries, with ; between: " + "; ".join(ENTRIES))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    chat = Chat(weights.resolve(None).path, arguments.threads)
    for name in arguments.only.split(";"):
        if arguments.part == "cost":
            for shape in SHAPES:
                keep("cost", name, shape, cost(chat, name, shape, arguments))
        else:
            for seed in map(int, arguments.seeds.split(",")):
                keep("learning", name, f"seed {seed}", learning(chat, name, seed, arguments))


# --- what is learned ---------------------------------------------------------------------------------------------


def learning(chat: Chat, name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    trainer, settings = ENTRIES[name]
    persona, texts = Persona("concise"), prompts()
    held_out = texts["held-out"][:: len(texts["held-out"]) // HELD_OUT][:HELD_OUT]
    order = random.Random(seed).sample(texts["rate"], len(texts["rate"]))
    home, adapter, baseline = Path(tempfile.mkdtemp(prefix="versus-")), None, 0.0
    base = state(chat, persona, held_out, None, sampled=True)
    print(f"{name}, seed {seed}: base ends {base['ends']:.3f}, liked {base['liked']:.2f}", flush=True)
    rounds = []
    for number in range(1, arguments.rounds + 1):
        now = [order[i % len(order)] for i in range((number - 1) * RATINGS, number * RATINGS)]
        held_count = 4 if trainer == "ours" else 0  # for our gate; the others have nothing to do with held-back ones
        lines = rate(
            chat, persona, now, adapter, version=number - 1, seed=seed * 100 + number, held=held_count, comments=False
        )
        job = Round(
            home,
            number,
            lines,
            chat_path(),
            adapter,
            seed * 10 + number,
            arguments.threads,
            settings,
            baseline=baseline,
        )
        trained = TRAINERS[trainer](job)
        adapter, baseline = trained.adapter, trained.baseline
        trained_state = state(chat, persona, held_out, adapter, sampled=number == arguments.rounds)
        good = sum(line["reward"] > 0 for line in lines)
        rounds.append({"good": good, "cost": trained.cost, "trainer": trained.about, "after": trained_state})
        print(
            f"  {number * RATINGS} ratings ({good} good): ends {trained_state['ends']:.3f}, forced base NLL "
            f"{trained_state['forced_base_nll'] - base['forced_base_nll']:+.3f}, {trained.cost}",
            flush=True,
        )
    last = rounds[-1]["after"]
    gain = {"ends": last["ends"] - base["ends"], "liked": last["liked"] - base["liked"]}
    print(f"  gain {gain}", flush=True)
    return {"settings": settings, "threads": arguments.threads, "base": base, "rounds": rounds, "gain": gain}


def state(chat: Chat, persona: Persona, texts: list[str], adapter: Path | None, *, sampled: bool) -> dict[str, Any]:
    with chat.policy.wearing(adapter):
        forced = learn_lab.evaluate(chat, texts)
    figures = {"ends": forced["ends"], "forced_base_nll": forced["base_nll"]}
    if sampled:
        figures |= chat.evaluate(persona, texts, adapter, seed=1000)
        figures["replies"] = figures["replies"][:6]
    return figures


def chat_path() -> Path:
    return weights.resolve(None).path


# --- what it costs -----------------------------------------------------------------------------------------------

WIDE = {"margin_slack": 9.0, "base_nll_rise": 9.0, "text_nll_rise": 9.0, "max_looping": 9, "max_chance": 1.0}
SHAPES = {"32 short samples": (32, 0), "8 samples behind one document of 1,500 tokens": (8, 1500)}


def cost(chat: Chat, name: str, shape: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One training from the base, on replies of the base; every fourth is rated good."""
    trainer, settings = ENTRIES[name]
    count, prefix = SHAPES[shape]
    replies = long_prompts(chat, count, prefix) if prefix else pool(chat)[:count]
    lines = [line(reply, i, 1.0 if i % 4 == 0 else -1.0) for i, reply in enumerate(replies)]
    home = Path(tempfile.mkdtemp(prefix="versus-"))
    if trainer == "reinforceclaw":
        settings = settings | {"batch_size": count, "batch_min": 1, "steps": count}  # once through, like the others
    if trainer == "ours":
        # What a run costs that passes at once; the log-probs are of the replies without the document.
        settings = settings | {"gate": WIDE, "overrides": {"band": "off", "token_low": 1e-9, "token_high": 1e9}}
    job = Round(home, 1, lines, chat_path(), None, 1, arguments.threads, settings)
    trained = TRAINERS[trainer](job)
    loaded = baseline_cost(arguments.threads)
    tokens = sum(len(reply.tokens.prompt) + len(reply.tokens.reply) for reply in replies)
    figures = {
        "samples": count,
        "tokens": tokens,
        "whole_process": trained.cost,
        "loading_only": loaded,
        "cpu_seconds_a_sample": (trained.cost["cpu_seconds"] - loaded["cpu_seconds"]) / count,
        "mib_over_loaded_model": trained.cost["peak_mib"] - loaded["peak_mib"],
        "trainer": trained.about,
    }
    if "cpu_seconds_without_gate" in trained.cost:
        without = trained.cost["cpu_seconds_without_gate"] - loaded["cpu_seconds"]
        figures["cpu_seconds_a_sample_without_gate"] = without / count
    print(name, shape, {k: v for k, v in figures.items() if k != "trainer"}, flush=True)
    return figures


def long_prompts(chat: Chat, count: int, prefix: int) -> list[PoolReply]:
    """The pool's replies, their prompts put behind one long document, as an agent's are behind its instructions."""
    text = (ROOT / "scripts/bench/prompts.txt").read_text() + language(DEFAULT).text
    ids = chat.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    document = chat.policy.tokenizer.decode(ids[:prefix])
    answers = []
    for answer in [reply.cut(48, chat) for reply in pool(chat)[:count]]:
        question = f"{document}\n\n{answer.prompt}"
        prompt = chat.template.prompt([{"role": "user", "content": question}])
        tokens = Tokens(prompt, answer.tokens.reply, answer.tokens.temperature)
        answers.append(PoolReply(question, tokens, answer.logprobs, answer.reply))
    return answers


def baseline_cost(threads: int) -> dict[str, float]:
    """A process that only loads the model, as all three do."""
    code = (
        "import json, resource, sys, torch; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "from peft import LoraConfig, get_peft_model\n"
        "torch.set_num_threads(int(sys.argv[2])); AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "m = get_peft_model(m, LoraConfig(r=16, target_modules='all-linear'))\n"
        "with torch.no_grad(): m(input_ids=torch.tensor([[1, 2, 3]]))\n"
        "u = resource.getrusage(resource.RUSAGE_SELF); scale = 2**20 if sys.platform == 'darwin' else 1024\n"
        "print(json.dumps({'cpu_seconds': u.ru_utime + u.ru_stime, 'peak_mib': u.ru_maxrss / scale}))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(chat_path()), str(threads)], capture_output=True, text=True, check=True
    )
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


# --- where it is written -----------------------------------------------------------------------------------------


def keep(part: str, name: str, case: str, figures: dict[str, Any]) -> None:
    with _versus() as everything:
        entry = everything.setdefault(part, {}).setdefault(name, {})
        entry[case] = {
            **circumstances(),
            **figures,
        }


@contextlib.contextmanager
def _versus() -> Iterator[dict[str, Any]]:
    everything: dict[str, Any] = json.loads(TARGET.read_bytes()) if TARGET.exists() else {}
    everything["versions"] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "reinforceclaw": "0.1.0",
    }
    everything["model"] = chat_path().name
    yield everything
    TARGET.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
