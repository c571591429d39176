"""A taste that depends on a picture's colour, learned by a toy that was trained from scratch here.

`python -m scripts.models.colours --seeds 1 2 3` writes benchmarks/colours.json. The toy is an Idefics3 of 0.15 million
parameters with an alphabet of its own. It learns here to name the colour of a picture, and to answer another question
in one of two manners at random. Then a rater who sees the picture likes the polite manner where it is red, and the
blunt one where it is blue. Rounds of ratings are real run folders and real runs of the trainer with its gate; only the
chat is in this process. The same taste is rated by a person's thumbs and by a program's rewards. One arm's check for
chance looks at replies without their pictures, and in one a person tosses a coin for each reply. A toy shows that the
way works, and not how well a real model learns.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import io
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np

from config import presets
from scripts.harness.circumstances import circumstances
from scripts.models import tiny_seeing
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.lessons.chat_template import Template
from trainer.pictures.album import Album
from trainer.pictures.processor import PictureProcessor
from trainer.policy.packing import Tokens, pack
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import permutation_test

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "colours.json"
SIDE: Final = tiny_seeing.SIDE
NAMES: Final = ("red", "blue")
POLITE: Final = (
    "with pleasure , my friend .",
    "gladly , thank you .",
    "of course , dear friend .",
    "yes please , my dear .",
)
BLUNT: Final = ("no . go away .", "never . leave me .", "not now . go .", "no . be quiet .")
ASKS_COLOUR: Final = ("which colour is it ?", "name the colour .", "what colour do you see ?")
ASKS_TALK: Final = ("what do you say ?", "say something .", "talk to me .", "your answer , please ?")
STEPS: Final = 500
BATCH: Final = 16
PICTURES: Final = 240  # made once; the toy learns from these
RATINGS: Final = 192
# A toy's adapter is far smaller than those that presets are made for.
OVERRIDES: Final = {"learning_rate": 2e-3, "passes": 3}
# The gate's own questions are in a language that the toy has never read.
BOUNDS: Final = {"base_nll_rise": 100.0, "text_nll_rise": 100.0, "topic_fall": 100.0, "max_looping": 100}
# What an arm changes: who rates, by what, and whether the check for chance sees pictures.
ARMS: Final[dict[str, dict[str, bool]]] = {
    "person": {},
    "person, coin": {"coin": True},
    "person, pictures unseen by the check": {"unseen": True},
    "program": {"human": False},
}
NAMED_CHOICES: Final = ("critic", "credit", "pushed", "reach", "way", "learning_rate")
EVALUATED: Final = 60  # held-out pictures, each with another shade and another block
REPLY_TOKENS: Final = 16


def picture(name: str, draw: random.Random) -> bytes:
    """A shade of red or blue with a grey block somewhere."""
    from PIL import Image

    strong, weak = draw.randint(150, 255), (draw.randint(0, 70), draw.randint(0, 70))
    colour = (strong, *weak) if name == "red" else (*weak, strong)
    image = Image.new("RGB", (SIDE, SIDE), colour)
    grey, x, y = draw.randint(60, 200), draw.randint(0, SIDE - 10), draw.randint(0, SIDE - 10)
    image.paste((grey, grey, grey), (x, y, x + draw.randint(3, 10), y + draw.randint(3, 10)))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def make_tokenizer() -> Any:
    """Words of the toy's language as tokens, cut as SmolLM2's tokenizer cuts: llama.cpp knows that way."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    texts = [*POLITE, *BLUNT, *ASKS_COLOUR, *ASKS_TALK, *(f"{name} ." for name in NAMES), "user\n", "assistant\n"]
    raw.train_from_iterator(texts * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=special[1], eos_token=special[2], pad_token=special[0], unk_token=special[0]
    )


def train_from_scratch(folder: Path, seed: int) -> dict[str, Any]:
    """Write the toy; how it was trained and what it can do."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    torch.set_num_threads(1)
    tiny_seeing.make("idefics3", folder, make_tokenizer(), seed=seed, deviation=0.06)
    model = AutoModelForImageTextToText.from_pretrained(folder).train()
    processor: Any = AutoProcessor.from_pretrained(folder)
    draw, start = random.Random(seed), time.monotonic()
    prepared = [_prepared(processor, name, picture(name, draw)) for name in NAMES for _ in range(PICTURES // 2)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=STEPS)
    losses = []
    for step in range(STEPS):
        batch = _batch(processor, [draw.choice(prepared) for _ in range(BATCH)], draw)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        if step % 100 == 99:
            print(f"step {step + 1}: loss {sum(losses[-50:]) / 50:.3f}", flush=True)
    model.eval().save_pretrained(folder)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": STEPS, "loss": round(sum(losses[-50:]) / 50, 4), "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def _prepared(processor: Any, name: str, data: bytes) -> tuple[str, list[int], Any]:
    """A picture's colour, its tokens, and its pixels (tiles, 3, side, side)."""
    from PIL import Image

    inputs = processor(text=["<image>"], images=[[Image.open(io.BytesIO(data))]], add_special_tokens=False,
                       return_tensors="pt")  # fmt: skip
    return name, inputs["input_ids"][0].tolist(), inputs["pixel_values"][0]


def _batch(processor: Any, rows: Sequence[tuple[str, list[int], Any]], draw: random.Random) -> dict[str, Any]:
    """Half ask for the colour, half for a few words in either manner; the loss is on replies alone."""
    import torch

    sequences = []
    for name, picture_ids, _ in rows:
        asks_colour = draw.random() < 0.5
        question = draw.choice(ASKS_COLOUR if asks_colour else ASKS_TALK)
        reply = f"{name} ." if asks_colour else draw.choice(draw.choice((POLITE, BLUNT)))
        opening, closing = (
            _ids(processor, text) for text in ("<|im_start|>user\n", f"{question}<|im_end|>\n<|im_start|>assistant\n")
        )
        sequences.append(([*opening, *picture_ids, *closing], _ids(processor, f"{reply}<|im_end|>")))
    width = max(len(prompt) + len(reply) for prompt, reply in sequences)
    ids = torch.full((len(rows), width), processor.tokenizer.pad_token_id)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, (prompt, reply_ids) in enumerate(sequences):
        end = len(prompt) + len(reply_ids)
        ids[row, :end] = torch.tensor([*prompt, *reply_ids])
        labels[row, len(prompt) : end] = torch.tensor(reply_ids)
        mask[row, :end] = 1
    pixels = torch.stack([pixels for _, _, pixels in rows])
    return {"input_ids": ids, "labels": labels, "attention_mask": mask, "pixel_values": pixels}


def _ids(processor: Any, text: str) -> list[int]:
    ids: list[int] = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


# --- the rounds ---------------------------------------------------------------------------------------------------


def is_liked(name: str, text: str) -> bool:
    """The rater: polite where it is red, blunt where it is blue; else than in either manner never."""
    return text.strip() in (POLITE if name == "red" else BLUNT)


class Toy:
    """The model as a server would have it: replies about pictures with exact ids and log-probs."""

    def __init__(self, weights: Path, pictures: Sequence[bytes]) -> None:
        self.weights = weights
        self.policy = TorchPolicy(weights, presets.resolve("balanced", {}), parent=None, threads=1, seed=0)
        by_name = {hashlib.sha256(data).hexdigest(): data for data in pictures}
        self.album = Album(by_name, PictureProcessor(weights), first_id=self.policy.words)
        self.album.number_all()
        assert (reason := self.policy.see(self.album)) is None, reason
        self.template = Template(self.policy.tokenizer, album=self.album)

    def answer(self, chats: Sequence[Any], adapter: Path | None, seed: int) -> list[dict[str, Any]]:
        """Lines of samples.jsonl, without what a rating says."""
        prompts = [self.template.prompt(chat) for chat in chats]
        with self.policy.wearing(adapter):
            replies = self.policy.generate(prompts, max_tokens=REPLY_TOKENS, temperature=1.0, seed=seed)
            rows = [Tokens(prompt, tuple(reply)) for prompt, reply in zip(prompts, replies, strict=True)]
            packed = pack(rows)
            values = np.split(self.policy.log_probs(packed).plain, np.cumsum(packed.lengths)[:-1])
        return [
            {
                "messages": chat, "exact": True, "prompt_token_ids": self._served_ids(row.prompt),
                "token_ids": list(row.reply), "logprobs": part.tolist(), "text": self.template.text(row.reply),
                "finish_reason": "stop" if row.reply[-1] == self.template.end else "length",
                "sampling": {"temperature": 1.0},
            }
            for chat, row, part in zip(chats, rows, values, strict=True)
        ]  # fmt: skip

    def _served_ids(self, prompt: Sequence[int]) -> list[int]:
        """Ids as a server tells them: every piece of every picture with the same one."""
        piece = self.policy.tokenizer.convert_tokens_to_ids("<image>")
        return [piece if id >= self.album.first_id else id for id in prompt]


def chat_about(data: bytes, text: str) -> list[dict[str, Any]]:
    name = hashlib.sha256(data).hexdigest()
    return [{"role": "user", "content": [{"type": "image", "sha256": name}, {"type": "text", "text": text}]}]


def evaluate(toy: Toy, held_out: Sequence[bytes], adapter: Path | None) -> dict[str, float]:
    """Shares of held-out pictures: liked, by colour, and of which the colour is named."""
    talks = [chat_about(data, ASKS_TALK[n % len(ASKS_TALK)]) for n, data in enumerate(held_out)]
    names = [chat_about(data, ASKS_COLOUR[n % len(ASKS_COLOUR)]) for n, data in enumerate(held_out)]
    liked: dict[str, list[bool]] = {name: [] for name in NAMES}
    for n, answer in enumerate(toy.answer(talks, adapter, 99)):
        liked[NAMES[n % 2]].append(is_liked(NAMES[n % 2], answer["text"]))
    matches = [NAMES[n % 2] in answer["text"] for n, answer in enumerate(toy.answer(names, adapter, 98))]
    shares = {name: round(sum(rows) / len(rows), 3) for name, rows in liked.items()}
    return {"liked": round(sum(shares.values()) / 2, 3), **shares, "named": round(sum(matches) / len(matches), 3)}


@contextlib.contextmanager
def unseen_pictures() -> Iterator[None]:
    """The check for chance as it was before: it looks at replies alone."""
    fewest, permutation_test.FEWEST_PICTURES = permutation_test.FEWEST_PICTURES, sys.maxsize
    try:
        yield
    finally:
        permutation_test.FEWEST_PICTURES = fewest


def arm(
    weights: Path, folder: Path, seed: int, rounds: int, *, human: bool = True, coin: bool = False, unseen: bool = False
) -> dict[str, Any]:
    """Rounds of ratings and runs; `coin`: the rater tosses one that falls as often as a reply is liked. `unseen`: the
    check for chance looks at replies alone."""
    draw = random.Random(seed)
    series = [[picture(NAMES[n % 2], draw) for n in range(RATINGS)] for _ in range(rounds)]
    held_out = [picture(NAMES[n % 2], draw) for n in range(EVALUATED)]
    toy = Toy(weights, [*itertools.chain(*series), *held_out])
    points: list[dict[str, Any]] = [{"version": 0, **evaluate(toy, held_out, None)}]
    print(f"seed {seed} {folder.name}: {points[0]}", flush=True)
    runs: list[dict[str, Any]] = []
    adapters: dict[int, Path] = {}
    for number, pictures in enumerate(series, 1):
        live = max(adapters, default=0)
        chats = [chat_about(data, draw.choice(ASKS_TALK)) for data in pictures]
        answers = toy.answer(chats, adapters.get(live), number)
        rewards = [1.0 if is_liked(NAMES[n % 2], answer["text"]) else -1.0 for n, answer in enumerate(answers)]
        if coin:
            draw.shuffle(rewards)
        lines = []
        for n, (answer, reward) in enumerate(zip(answers, rewards, strict=True)):
            name = f"{number}-{n}"
            lines.append(answer | {
                "rating": f"rt-{name}", "completion": f"rl-{name}", "split": "held" if n % 8 >= 6 else "train",
                "version": live, "reward": reward, "weight": 1.0, "human": human,
            })  # fmt: skip
        run = folder / f"r{number}"
        write_run(run, weights, number, lines, pictures, adapters)
        with Progress(run, output := io.StringIO()) as progress, unseen_pictures() if unseen else nullcontext():
            result = loop.run(run, progress, Stop())
        events = [json.loads(line) for line in output.getvalue().splitlines()]
        if result["status"] == "passed":
            adapters[number] = Path(result["adapter"])
        causes = [outcome["cause"] for outcome in result["samples"].values()]
        runs.append({
            "status": result["status"], "reason": result["reason"], "seconds": result["seconds"],
            "liked_of_ratings": sum(line["reward"] > 0 for line in lines), "trained": causes.count(None),
            "chance": result["gate"].get("chance", {}).get("value"),
            "choices": {event["name"]: {"value": event["value"], "why": event["why"]} for event in events
                        if event["event"] == "choice" and event["name"] in NAMED_CHOICES},
            "acceptance": result["metrics"].get("acceptance"), "kl_old": result["metrics"].get("kl_old"),
            "kl_ref": result["metrics"].get("kl_ref"),
        })  # fmt: skip
        live = max(adapters, default=0)
        points.append({"version": live, **evaluate(toy, held_out, adapters.get(live))})
        print(f"seed {seed} {folder.name} round {number}: {points[-1]} {runs[-1]}", flush=True)
    return {"points": points, "runs": runs}


def write_run(
    folder: Path,
    weights: Path,
    number: int,
    lines: Sequence[dict[str, Any]],
    pictures: Sequence[bytes],
    adapters: Mapping[int, Path],
) -> None:
    """A run folder as trainer/CONTRACT.md has it."""
    folder.mkdir(parents=True)
    order = {
        "format": 1, "run": number, "model": "toy", "weights": str(weights), "version": number,
        "parent": max(adapters, default=0), "out": str(folder / "adapter"),
        "adapters": {str(version): str(path) for version, path in adapters.items()}, "seed": number, "threads": 1,
        "overrides": OVERRIDES, "gate": BOUNDS,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(order))
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    rows = [
        {"sha256": hashlib.sha256(data).hexdigest(), "completions": [line["completion"]],
         "data": base64.b64encode(data).decode()}
        for data, line in zip(pictures, lines, strict=True)
    ]  # fmt: skip
    (folder / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "calibration.jsonl").write_text("")


def toy_of(weights: Path, seed: int) -> dict[str, Any]:
    """How the toy in this folder was trained: before, or now."""
    record = weights / "trained.json"
    if not record.is_file():
        record.write_text(json.dumps(train_from_scratch(weights, seed)))
    toy: dict[str, Any] = json.loads(record.read_text())
    return toy


def main() -> None:
    parser = argparse.ArgumentParser(description="A taste that depends on a picture's colour.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--toys", type=Path, help="where trained toys are kept, and taken from")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "circumstances": circumstances(), "ratings": RATINGS, "evaluated": EVALUATED, "overrides": OVERRIDES,
        "seeds": [],
    }  # fmt: skip
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            weights = (arguments.toys or Path(folder)) / f"toy-{seed}"
            toy = toy_of(weights, seed)
            print(f"seed {seed}: {toy}", flush=True)
            arms: dict[str, Any] = {}
            report["seeds"].append({"seed": seed, "toy": toy, "arms": arms})
            for name in arguments.arms:
                arms[name] = arm(weights, Path(folder) / name, seed, arguments.rounds, **ARMS[name])
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
