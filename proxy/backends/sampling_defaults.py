"""How a server samples where a client says nothing, as far as that can be known from outside.

Owns a model's generation_config.json as vLLM and SGLang read it, and what llama-server's /props say. A server's own
log-probs say whether such a file is in force. Not here: the asking (openai_compatible, vllm, sglang, llamacpp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from proxy.backends.model_files import ModelFolders, is_hub_id, read_small
from proxy.core.json_edit import loads
from trainer.launch import local

NEUTRAL: Final[Mapping[str, float]] = {"temperature": 1.0, "top_p": 1.0}  # OpenAI's
# What vLLM and SGLang take of that file, and the values that change nothing.
MEMBERS: Final[Mapping[str, float]] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
PENALTIES: Final[Mapping[str, float]] = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
FILE: Final = "generation_config.json"
_PROPS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
FLOOR: Final = -30.0  # nats; servers write −9999 and less for what they never say
# A real vLLM on a CPU says the same to the digit when it is asked twice, and is 1.5 away in another way
# (tests/backends/test_vllm_defaults.py); a GPU's bf16 rounds otherwise in another batch.
CLEAR_DISTANCE: Final = 0.1  # nats
CLEARLY: Final = 4.0

Odds = Mapping[tuple[str, tuple[int, ...]], float]  # log-probs of tokens, by their text and bytes


@dataclass(frozen=True, slots=True)
class Defaults:
    sampling: Mapping[str, float]
    source: str  # from where, in a few words
    unsure: frozenset[str] = frozenset()  # of which members it is not known whether the server has them
    logprobs_of: Literal["model"] | None = None  # where its log-probs are of before sampling, and need not be


def file_defaults(spec: str, folders: ModelFolders | None = None) -> tuple[Path, dict[str, float]] | None:
    """A model's file on this machine, and what it changes; None where the model is not here. Blocking.

    `folders`: of a spec that a server names; it has to be below one of them."""
    try:
        folder = Path(spec).expanduser() if folders is None or is_hub_id(spec) else folders.resolve(spec)
        location = folder if folder.is_dir() else local(spec)
    except (OSError, ValueError, ImportError):  # the last: no hub's cache without the train extra
        return None
    if location is None:
        return None
    try:
        says = loads(read_small(location / FILE) if folders is None else folders.read_small(location / FILE))
    except (OSError, ValueError):
        says = {}  # many models have none
    numbers = {name: _number(says.get(name)) for name in MEMBERS} if isinstance(says, dict) else {}
    return location / FILE, {name: n for name, n in numbers.items() if n is not None and n != MEMBERS[name]}


def is_file_in_force(unsaid: Odds, as_filed: Odds, neutral: Odds) -> bool | None:
    """Is the file what a server samples by? From the log-probs of the likeliest first tokens, asked without any member,
    with the file's, and with neutral ones. None where these do not tell them apart: raw log-probs are all the same."""
    by_file, by_none = distance(unsaid, as_filed), distance(unsaid, neutral)
    if max(by_file, by_none) < CLEAR_DISTANCE or max(by_file, by_none) < CLEARLY * min(by_file, by_none):
        return None
    return by_file < by_none


def changes_nothing(sampling: Mapping[str, float]) -> bool:
    """True where it samples from what the model says unaltered. Greedy replies count as drawn at a temperature of 1."""
    plain = {**MEMBERS, **PENALTIES}
    changed = {name for name, value in sampling.items() if value != plain.get(name, value)}
    if sampling.get("top_k") == -1:  # a word for all
        changed.discard("top_k")
    if sampling.get("temperature") == 0:
        changed -= {"temperature", "top_p", "top_k", "min_p"}
    return not changed


def is_before_sampling(hot: Odds, cold: Odds) -> bool:
    """True where a server's log-probs are those of before sampling: at two temperatures they are the same then."""
    return bool(hot.keys() & cold.keys()) and distance(hot, cold) < CLEAR_DISTANCE


def distance(first: Odds, second: Odds) -> float:
    """In nats, at most, of the tokens that both tell of; 0 where there is none."""
    return max((abs(first[token] - second[token]) for token in first.keys() & second.keys()), default=0.0)


def first_token_odds(answer: bytes) -> Odds:
    """The first token's alternatives. Which they are is partly chance: in vLLM the one that was drawn has the last
    one's place. Raises ValueError, KeyError, TypeError, IndexError."""
    entries = loads(answer)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return {
        (str(entry["token"]), tuple(entry.get("bytes") or ())): max(float(entry["logprob"]), FLOOR) for entry in entries
    }


def props_sampling(answer: bytes) -> dict[str, float]:
    """Read them from llama-server, newer and older; empty where it does not say."""
    try:
        settings = loads(answer)["default_generation_settings"]
        parameters = settings.get("params", settings)
        sampling = {ours: _number(parameters.get(name)) for name, ours in _PROPS.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    off = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return {name: round(value, 4) for name, value in sampling.items() if value is not None and value != off.get(name)}


def in_words(sampling: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in sampling.items())


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None
