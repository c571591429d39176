"""The lab: try ways to learn, quickly, before they go into the trainer. One process, no filter, no gate.

    python -m scripts.research.learn_lab "balanced:" "kept:kept=1" "full:batch=28,passes=4,rate=4e-4" \
        --seeds 1,2,3 --rounds 3

The persona is `concise`. Its liked share is not counted but computed, which takes much of the chance out of it. Each
held-out prompt is answered with the end token forbidden, and 1 − Π(1 − p_end) is how likely the reply would have ended.
The mean over what is sampled so is unbiased. Base NLL is of those forced replies, so it is higher than of real ones.
`reached` weighs each token by how likely a real reply gets there. So does `excess`, the gate's base_nll. Appends a line
a seed to benchmarks/learn_lab/DATE.jsonl.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from scripts.bench.persona import MAX_TOKENS, ROOT, TEMPERATURE, Chat, prompts
from scripts.research import lab_judge
from scripts.research.critic_states import states
from trainer import losses, mis_po
from trainer.formats import weights
from trainer.lessons import anchor, credit_assignment, critic
from trainer.lessons.credit_assignment import BY_CHANCE
from trainer.lessons.lesson import Anchor
from trainer.mis_po import Terms
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.policy import TokenDistribution
from trainer.run import permutation_test, steps

DRIFT_BOUND, KL_REF, GUARD, HELD_COUNT = 1.0, 0.05, 2.0, 4
VARIANT: dict[str, float] = {
    "rate": 6e-4,
    "passes": 1,
    "batch": 8,
    "balance": 1,  # both signs weigh the same
    "good": 1.0,  # else: the weight of good ones
    "bad": 1.0,  # the weight of bad ones; 0 leaves them out
    "kept": 0,  # the optimiser's state goes on from round to round
    "likely": 1,  # a disliked reply's token that was likelier than this is not pushed down
    "guard": GUARD,
    "forks": 1.0,  # share of a run's tokens that train: those of the highest entropy (arXiv 2506.01939)
    "eps": 1e-8,  # of AdamW: near a gradient's own size, small elements move less
    "thermostat": 1,  # `likely` where the policy is vaguer on its own rated replies than the base is, else 1
    "own": 0,  # unrated replies of the policy to the round's prompts, judged by plain looks (lab_judge)
    "credit": 1,  # tokens are pushed by what they earned, where a critic explains so much; 1: never
    "stay": 0,  # weight of KL(policy ‖ start) at the tokens that earned nothing, in a run by token
    "elsewhere": 0,  # weight of pushing down what is pushed up, where it was unlikely and earned nothing
    "kl_ref": KL_REF,
    "drift": DRIFT_BOUND,  # nats a token, past which a run takes no further step
    "own_weight": 1.0,  # of a judged reply beside a rated one
}


Rated = tuple[Tokens, bool]  # a reply, and whether it was good


class EndChance(LogitsProcessor):  # type: ignore[misc]
    """Forbids the end token and sums up how likely a reply is to have gone on without it."""

    def __init__(self, end: int) -> None:
        self._end = end
        self.going_on: list[torch.Tensor] = []  # (B,) a step: log of the chance not to end there

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ends = (scores.float() / TEMPERATURE).softmax(-1)[:, self._end].clamp(max=1 - 1e-6)
        self.going_on.append(torch.log1p(-ends))
        scores = scores.clone()
        scores[:, self._end] = -torch.inf
        return scores


def evaluate(chat: Chat, texts: list[str]) -> dict[str, Any]:
    policy, end = chat.policy, chat.template.end
    prompt_ids = [chat.template.prompt([{"role": "user", "content": text}]) for text in texts]
    width = max(map(len, prompt_ids))
    ids = torch.full((len(prompt_ids), width), end)  # (B, P), padded on the left
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompt_ids):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    torch.manual_seed(1000)
    chance = EndChance(end)
    with torch.inference_mode():
        out = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=MAX_TOKENS,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            top_p=1.0,
            pad_token_id=end,
            logits_processor=LogitsProcessorList([chance]),
        )[:, width:]
    going_on = np.asarray(torch.stack(chance.going_on, 1).double()).cumsum(1)  # (B, T)
    ended = 1 - np.exp(going_on[:, -1])
    # How likely a reply gets there.
    reached = np.exp(np.concatenate([np.zeros((len(prompt_ids), 1)), going_on[:, :-1]], 1))
    some = list(range(len(prompt_ids)))[::2]
    scored = chat.score([Tokens(prompt_ids[i], tuple(out[i, :64].tolist())) for i in some], None, 1.0)
    nll = np.stack([-row for row in scored])
    weight = reached[some, : nll.shape[1]]
    return {
        "ends": float(ended.mean()),
        "each": ended.round(3).tolist(),
        "base_nll": float(nll.mean()),
        "base_nll_reached": float((nll * weight).sum() / weight.sum()),
        **beyond(chat, [Tokens(prompt, tuple(out[i].tolist())) for i, prompt in enumerate(prompt_ids)], reached),
    }


def beyond(chat: Chat, replies: list[Tokens], reached: Any) -> dict[str, float]:
    """Measure how much odder than its own the base finds these replies, and where the policy ends.

    - `excess`: nats a token over the whole vocabulary, each token weighed by how likely a real reply gets there.
    - `excess_of_ends`: how much of that is the end token's.
    - `ends_oddly`: share of the policy's chances to end that are where the base would end with less than 1 %.
    """
    policy, end = chat.policy, chat.template.end
    values = np.zeros((3, *reached.shape))  # excess, log p_θ(end), log p_base(end)
    for members in packing.group(replies, policy.budget):
        packed = packing.pack([replies[i] for i in members])
        now = policy.teach(packed, 1, [end]).log_probs[:, 0]
        with policy.model.disable_adapter():
            base = policy.teach(packed, 1, [end]).log_probs[:, 0]
        each = np.stack([policy.surprise(packed).excess, now, base])
        for i, part in zip(members, np.split(each, np.cumsum(packed.lengths)[:-1], axis=1), strict=True):
            values[:, i] = part
    excess, now, base = values
    of_ends = (np.exp(base) - np.exp(now)) * base
    chances = reached * np.exp(now)
    return {
        "excess": float((reached * excess).sum() / reached.sum()),
        "excess_of_ends": float((reached * of_ends).sum() / reached.sum()),
        "ends_oddly": float(chances[base < np.log(0.01)].sum() / chances.sum()),
        "tokens": float(reached.sum() / len(replies)),
    }


def scored(chat: Chat, used: list[Tokens]) -> tuple[list[Any], float, list[Any]]:
    """Log-probs of each reply, the mean entropy of all their tokens, and each reply's entropies."""
    policy = chat.policy
    out: list[Any] = [None] * len(used)
    entropies: list[Any] = [None] * len(used)
    for members in packing.group(used, policy.budget):
        packed = packing.pack([used[i] for i in members])
        scores, cuts = policy.log_probs(packed), np.cumsum(packed.lengths)[:-1]
        for i, part, vague in zip(members, np.split(scores.plain, cuts), np.split(scores.entropy, cuts), strict=True):
            out[i], entropies[i] = part, vague
    return out, float(np.concatenate(entropies).mean()), entropies


def advantages(good: list[bool], v: dict[str, float]) -> list[float]:
    gains = [v["good"] if g else -v["bad"] for g in good]
    return mis_po.balance(gains) if v["balance"] else gains


def looked_at(chat: Chat, reply: Tokens, reward: float = 0.0) -> permutation_test.RatedReply:
    text = chat.said(reply)
    return permutation_test.RatedReply(text, len(reply.reply), text.ended, reward)


def own_replies(chat: Chat, ratings: list[Rated], texts: list[str], v: dict[str, float], seed: int) -> list[Rated]:
    """Sample the policy's own replies to the round's prompts, judged by what was rated so far."""
    if not v["own"]:
        return []
    new = chat.ask_now([texts[i % len(texts)] for i in range(int(v["own"]))], seed)
    rated = [looked_at(chat, reply, 1.0 if good else -1.0) for reply, good in ratings]
    verdicts, auc = lab_judge.judged(rated, [looked_at(chat, reply) for reply in new])
    right = [
        (reply.reply[-1] == chat.template.end) == (verdict > 0)
        for reply, verdict in zip(new, verdicts, strict=True)
        if verdict
    ]
    agreed = np.mean(right or [False])
    print(f"  judge: auc {auc:.2f}, {verdicts.count(1)} good, {verdicts.count(-1)} bad, right {agreed:.2f}")
    good, bad = (
        [(reply, verdict > 0) for reply, verdict in zip(new, verdicts, strict=True) if verdict == sign]
        for sign in (1, -1)
    )
    return good + bad[: len(good)]  # the rarer kind is what is missed


def credited(chat: Chat, used: list[Tokens], gains: list[float], v: dict[str, float], seed: int) -> list[Any]:
    """(T,) advantages: of each reply by what its tokens earned, as in the trainer; all alike, where nobody can tell."""
    read = states(chat, [r.prompt for r in used], [r.reply for r in used])
    credit = credit_assignment.credit(read, gains, critic.label_replies(read, gains, range(len(read))), seed)
    print(f"  critic: explains {credit.explained:.2f}", flush=True)
    if credit.explained < v["credit"] or credit.by_chance > BY_CHANCE:
        return [np.full(len(reply.reply), a) for reply, a in zip(used, gains, strict=True)]
    return [abs(a) * earned for a, earned in zip(gains, credit.tokens, strict=True)]


def expected(chat: Chat, used: list[Tokens], pushed: list[Any]) -> list[Anchor]:
    """The policy's expectations by token before a run, as in the trainer (anchor)."""
    earned = anchor.earners([reply.reply for reply in used], pushed)
    distributions: list[Any] = [None] * len(used)
    for members in packing.group(used, chat.policy.budget):
        packed = packing.pack([used[i] for i in members])
        taught, ends = chat.policy.teach(packed, 100, list(earned)), np.cumsum(packed.lengths)[:-1]
        for i, ids, values in zip(members, np.split(taught.ids, ends), np.split(taught.log_probs, ends), strict=True):
            distributions[i] = TokenDistribution(ids, values)
    return anchor.anchors_of(pushed, distributions, earned)


def weighted(new: list[Rated], own_ratings: list[Rated], v: dict[str, float]) -> tuple[list[Tokens], list[float]]:
    """The replies that have a gain, and their gains."""
    now = new + own_ratings
    gains = advantages([good for _, good in now], v)
    gains = [gain * v["own_weight"] if i >= len(new) else gain for i, gain in enumerate(gains)]
    pairs = [(reply, gain) for (reply, _), gain in zip(now, gains, strict=True) if gain]
    return [reply for reply, _ in pairs], [gain for _, gain in pairs]


def train(
    chat: Chat,
    rated: list[Rated],
    older: list[Rated],
    v: dict[str, float],
    seed: int,
    optimiser: Any,
    texts: list[str],
) -> tuple[Any, list[Any]]:
    """One run's optimiser steps. Returns the optimiser and a line of figures a step; `older` grows by the new."""
    policy = chat.policy
    own_ratings = own_replies(chat, [*rated, *older], texts, v, seed * 7919)
    held_indices = set(random.Random(seed).sample(range(len(rated)), HELD_COUNT))
    new = [rating for i, rating in enumerate(rated) if i not in held_indices]
    older[:0] = new
    used, gains = weighted(new, own_ratings, v)
    old, vague_now, entropies = scored(chat, used)
    edge = np.quantile(np.concatenate(entropies), 1 - v["forks"]) if v["forks"] < 1 else -1.0
    with policy.model.disable_adapter():
        ref, vague_base, _ = scored(chat, used)
    pushed = [np.full(len(now), a) for now, a in zip(old, gains, strict=True)]
    if v["credit"] < 1:
        pushed = credited(chat, used, gains, v, seed)
    likely = v["likely"] if not v["thermostat"] or vague_now > vague_base else 1.0
    start = expected(chat, used, pushed) if (v["stay"] or v["elsewhere"]) and v["credit"] < 1 else None
    if optimiser is None or not v["kept"]:
        optimiser = torch.optim.AdamW(policy.trained.values(), lr=v["rate"], weight_decay=0.0, eps=v["eps"])
    loss = partial(
        losses.combine,
        kl_ref=v["kl_ref"],
        guard_low=1 / v["guard"],
        guard_high=v["guard"],
        w_distill=0.0,
        w_stay=v["stay"],
        w_elsewhere=v["elsewhere"],
    )
    rows: list[Any] = []
    for indices in steps.schedule(gains, batch=int(v["batch"]), passes=int(v["passes"]), seed=seed):
        sums: dict[str, float] = {}
        sequences = [used[i] for i in indices]
        for members in packing.group(sequences, policy.budget):
            part = [indices[m] for m in members]
            lengths = [len(old[i]) for i in part]
            terms = Terms(
                old=np.concatenate([old[i] for i in part]),
                ref=np.concatenate([ref[i] for i in part]),
                keep=np.ones(sum(lengths)),
                advantage=np.concatenate(
                    [mis_po.spare_likely(pushed[i], old[i], likely) * (entropies[i] >= edge) for i in part]
                ),
                share=np.repeat([1 / (n * len(indices)) for n in lengths], lengths),
            )
            if start is not None:
                terms = replace(
                    terms,
                    stays=np.concatenate([pushed[i] == 0 for i in part]).astype(float),
                    elsewhere=np.concatenate([start[i].down for i in part]),
                    teacher_ids=np.concatenate([start[i].ids for i in part]),
                    teacher=np.concatenate([start[i].log_probs for i in part]),
                )
            for name, value in policy.backward(packing.pack([used[i] for i in part]), terms, loss).items():
                sums[name] = sums.get(name, 0.0) + value
        tokens = sum(len(old[i]) for i in indices)
        drift = sums["kl_old"] / tokens
        if drift > v["drift"]:
            optimiser.zero_grad()
            rows.append("stopped by the drift bound")
            break
        norm = float(torch.nn.utils.clip_grad_norm_(list(policy.trained.values()), 1.0))
        optimiser.step()
        optimiser.zero_grad()
        rows.append([round(drift, 4), round(sums.get("kl_stay", 0.0) / tokens, 4), round(norm, 3)])
    return optimiser, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+", metavar="NAME:KEY=VALUE,…", help=", ".join(VARIANT))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ratings", type=int, default=32, help="a round")
    parser.add_argument("--eval", type=int, default=40, help="held-out prompts")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    chat, texts = Chat(weights.resolve(None).path, arguments.threads), prompts()
    held_out = texts["held-out"][:: len(texts["held-out"]) // arguments.eval][: arguments.eval]
    start = chat.policy.adapter()
    base = evaluate(chat, held_out)
    print(f"base: ends {base['ends']:.3f}, nll {base['base_nll']:.3f}", flush=True)
    for spec in arguments.variants:
        name, _, changes = spec.partition(":")
        v = VARIANT | {k: float(x) for k, x in (item.split("=") for item in changes.split(",") if item)}
        assert v.keys() == VARIANT.keys(), f"a variant has {', '.join(VARIANT)}"
        for seed in map(int, arguments.seeds.split(",")):
            chat.policy.wear(start)
            optimiser, rounds = None, []
            older: list[Rated] = []
            order = random.Random(seed).sample(texts["rate"], len(texts["rate"]))
            for number in range(1, arguments.rounds + 1):
                began = time.monotonic()
                now = [
                    order[i % len(order)] for i in range((number - 1) * arguments.ratings, number * arguments.ratings)
                ]
                replies = chat.ask_now(now, seed * 100 + number)
                good = [r.reply[-1] == chat.template.end for r in replies]
                rated = list(zip(replies, good, strict=True))
                optimiser, rows = train(chat, rated, older, v, seed * 10 + number, optimiser, now)
                figures = evaluate(chat, held_out)
                seconds = round(time.monotonic() - began, 1)
                rounds.append({"good": sum(good), "steps": rows, "eval": figures, "seconds": seconds})
                print(
                    f"{name}, seed {seed}, {number * arguments.ratings} ratings ({sum(good)} good): "
                    f"ends {figures['ends']:.3f}, excess {figures['excess']:+.3f}, "
                    f"of ends {figures['excess_of_ends']:+.3f}, "
                    f"ends oddly {figures['ends_oddly']:.2f}, {figures['tokens']:.0f} tokens, {rows}",
                    flush=True,
                )
            line = {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "name": name,
                "variant": v,
                "seed": seed,
                "arguments": vars(arguments),
                "base": base,
                "rounds": rounds,
            }
            target = ROOT / f"benchmarks/learn_lab/{line['date'][:10]}.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
