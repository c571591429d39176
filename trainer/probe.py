"""`python -m trainer.probe WEIGHTS`: what the weights say to conversations that a server has answered.

Owns one look at the weights in a process of its own. A line of JSON on stdin says what the server was asked and what it
answered. A line on stdout has size and vocabulary, and how the weights render and read the conversations. It says how
likely they find each token of the answers. Computed as a run computes, on the CPU, with one model load, or with none
where only prompts are looked at. Not here: what the server tells and what a difference means (the proxy's match and
likeness).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from config import presets
from config.errors import SettingsError
from trainer import container
from trainer.formats import model_code, model_info, weights
from trainer.io.run_folder import Compute, RunError
from trainer.lessons import rehearsal
from trainer.lessons.chat_template import Template
from trainer.lessons.line_members import BadLine
from trainer.lessons.rehearsal import RunFilter
from trainer.lessons.rendering import KnownPrompt
from trainer.pictures.album import open_album
from trainer.policy import packing
from trainer.policy.policy import Policy

GB: Final = 2**30
NO_OVERRIDES: Final[Mapping[str, Any]] = {}
NO_PICTURES: Final[Mapping[str, str]] = {}
SPARE_GB: Final = 0.5  # activations of some hundred tokens, and what the machine keeps

# messages, text, ended; prompt_ids, prompt_text, prompt_tokens and reply_ids where the server tells them
Conversation = Mapping[str, Any]


def look(
    folder: Path,
    conversations: Sequence[Conversation],
    *,
    threads: int,
    score: bool = True,
    lines: Sequence[Mapping[str, Any]] = (),
    counted: Sequence[Mapping[str, Any]] = (),
    preset: str = "balanced",
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    parent: int = 0,
    adapter: str | None = None,
    comparison: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    pictures: Mapping[str, str] = NO_PICTURES,
) -> dict[str, Any]:
    """Without `score` no weights are loaded. `lines` are of samples that a run with this preset might get, from version
    `parent` in the folder `adapter`; `comparison` is as in run.json. Of `counted` lines the known tokens are counted.
    `pictures` of `lines` are base64 by the sha256 of each.

    Raises BadLine where the chat template refuses the messages, ProfileError, RunError, OSError.
    """
    from transformers import AutoTokenizer

    if trust_remote_code:
        model_code.trust(folder)
    profile = model_info.read(folder)
    config = json.loads((folder / "config.json").read_bytes())
    text = {**config, **(config.get("text_config") or {})}
    tokenizer = AutoTokenizer.from_pretrained(folder, **model_code.options(folder))
    compute, unscored = _affordable(profile.total) if score else (None, "only prompts were looked at")
    policy = None if compute is None else _policy(folder, compute, threads, adapter)
    words = int(text.get("vocab_size") or len(tokenizer)) if policy is None else policy.words
    images = {name: base64.b64decode(data) for name, data in pictures.items()}
    album = open_album(images, folder, max(words, len(tokenizer)), None if policy is None else policy.see)
    template = plain_template = Template(tokenizer, album=album)
    run_filter = RunFilter(presets.resolve(preset, dict(overrides)), parent, comparison)
    refusals = rehearsal.refusals(lines, plain_template, max_seq_len=run_filter.preset.max_seq_len)
    served_prompts = [_served_prompt(each, template) for each in conversations]
    template = template.as_served(
        [
            KnownPrompt(each["messages"], None, None, count, ids)
            for each, ids in zip(conversations, served_prompts, strict=True)
            if (count := each.get("prompt_tokens")) or ids is not None
        ]
    )
    readings = [_read(each, ids, template, tokenizer) for each, ids in zip(conversations, served_prompts, strict=True)]
    doubt: str | None = unscored
    if policy is not None:
        with policy.wearing(None):
            readings = [_with_scores(reading, policy) for reading in readings]
        unlikely, doubt = rehearsal.unlikely_replies(
            lines, plain_template, policy, run_filter, parameters=profile.total
        )
        refusals = [refusal or unlikely.get(index) for index, refusal in enumerate(refusals)]
    return {
        "path": str(folder),
        "architecture": profile.architecture,
        "vocabulary": int(text.get("vocab_size") or template.vocabulary),
        "tokens": template.vocabulary,
        "width": text.get("hidden_size"),
        "parameters": profile.total,
        "unscored": unscored,
        "way": str(template.choice.way),
        "explained": template.choice.explained,
        "known": template.choice.prompts,
        "wrong": template.choice.wrong,
        "conversations": readings,
        "refused": refusals,
        "doubt": doubt,
        "known_tokens": rehearsal.known_tokens(counted, plain_template),
    }


def _served_prompt(conversation: Conversation, template: Template) -> tuple[int, ...] | None:
    """The prompt as the server itself says that it reads it; None too where the weights lack one of its tokens."""
    if conversation.get("prompt_ids") and max(conversation["prompt_ids"]) < template.vocabulary:
        return tuple(conversation["prompt_ids"])
    if conversation.get("prompt_ids") or not conversation.get("prompt_text"):
        return None
    return template.served({"text": conversation["prompt_text"]}, conversation.get("prompt_tokens"))


def _read(
    conversation: Conversation, served_prompt: tuple[int, ...] | None, template: Template, tokenizer: Any
) -> dict[str, Any]:
    """The conversation as these weights read it, and the answer's tokens; the server's own ids where it tells them."""
    own_prompt = template.as_found(conversation["messages"])
    reply = conversation.get("reply_ids") or list(
        template.reply(conversation["text"], ended=conversation["ended"]) if conversation["text"] else ()
    )
    scored = served_prompt
    if scored is None and template.choice.wrong is None:
        scored = template.prompt(conversation["messages"])
    return {
        "prompt_ids": list(own_prompt),
        "rendered": tokenizer.decode(list(own_prompt)),
        # How the server rendered it, in this vocabulary; None: it does not tell, or has tokens that are not in it.
        "theirs": None if served_prompt is None else tokenizer.decode(list(served_prompt)),
        "their_tokens": None if served_prompt is None else len(served_prompt),
        # The prompt that the answer's log-probs are computed after, as a run would.
        "scored": list(scored or own_prompt),
        "reply_ids": [int(i) for i in reply] if reply and max(reply) < template.vocabulary else [],
        "logprobs": [],
        "best": [],
    }


def _affordable(parameters: int) -> tuple[Compute | None, str | None]:
    """The number format that there is memory for, else why nothing is computed."""
    free = container.memory().free / GB - SPARE_GB
    for compute, size in (("float32", 4), ("bfloat16", 2)):
        if parameters * size / GB < free:
            return compute, None  # type: ignore[return-value]
    return None, f"the weights need {parameters * 2 / GB:.1f} GB of memory beside the server and {free:.1f} GB are free"


def _policy(folder: Path, compute: Compute, threads: int, adapter: str | None) -> Policy:
    from trainer.policy import policies

    framework, _ = policies.choose("auto")
    return policies.open_policy(
        framework,
        folder,
        presets.resolve("balanced", {}),
        parent=Path(adapter) if adapter else None,
        threads=threads,
        seed=0,
        compute="auto" if framework == "mlx" else compute,
    )


def _with_scores(reading: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """With log-probs of the answer's tokens at temperature 1, and those of the likeliest token in each place."""
    if not reading["reply_ids"]:
        return reading
    packed = packing.pack([packing.Tokens(tuple(reading["scored"]), tuple(reading["reply_ids"]))])
    log_probs, best = policy.log_probs(packed).plain, policy.teach(packed, 1).log_probs[:, 0]
    return reading | {"logprobs": log_probs.tolist(), "best": best.tolist()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainer.probe", description="What the weights say to a server's answers.")
    parser.add_argument("weights", help="a local folder or a hub id")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    try:
        answer = look(weights.resolve(arguments.weights).path, threads=arguments.threads, **request)
    except (weights.WeightsError, model_info.ProfileError, RunError, SettingsError, BadLine) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    except (OSError, ValueError, RuntimeError, AssertionError, ImportError) as error:  # files, arrays, a new model kind
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return 1
    print(json.dumps(answer), flush=True)
    return 0


def _end_with_stdin() -> None:
    """Whoever asked has gone: nobody waits for the answer."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # as trainer.__main__: torch's threads would delay the end
