"""`python -m trainer.probe WEIGHTS`: what the weights say to conversations that a server has answered.

Owns one look at the weights in a process of its own. A line of JSON on stdin says what the server was asked and what it
answered. A line on stdout has size and vocabulary, and how the weights render and read the conversations. It says how
likely they find each token of the answers. Computed as a run computes, on the CPU, with one model load, or with none
where only prompts are looked at. Not here: what the server tells and what a difference means (the proxy's match and
likeness).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from trainer.formats import model_info, weights
from trainer.io.run_folder import Compute, RunError
from trainer.lessons import rehearsal
from trainer.lessons.line_members import BadLine
from trainer.lessons.rendering import Known
from trainer.lessons.samples import Template
from trainer.policy import packing
from trainer.policy.policy import Policy

GB: Final = 2**30
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
    max_seq_len: int = 0,
    parent: int = 0,
    adapter: str | None = None,
) -> dict[str, Any]:
    """Without `score` no weights are loaded. `lines` are of samples that a run might get, from version `parent` in the
    folder `adapter`. `counted` are those of whose tokens it is counted what is known.

    Raises BadLine where the chat template refuses the messages, ProfileError, RunError, OSError.
    """
    from transformers import AutoTokenizer

    about = model_info.read(folder)
    config = json.loads((folder / "config.json").read_bytes())
    text = {**config, **(config.get("text_config") or {})}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = Template(tokenizer)
    bare = template
    refused = rehearsal.refusals(lines, bare, max_seq_len=max_seq_len)
    theirs = [_theirs(each, template) for each in conversations]
    template = template.as_served(
        [
            Known(each["messages"], None, None, count, ids)
            for each, ids in zip(conversations, theirs, strict=True)
            if (count := each.get("prompt_tokens")) or ids is not None
        ]
    )
    read = [_read(each, ids, template, tokenizer) for each, ids in zip(conversations, theirs, strict=True)]
    compute, unscored = _affordable(about.total) if score else (None, "only prompts were looked at")
    doubt: str | None = unscored
    if compute is not None:
        policy = _policy(folder, compute, threads, adapter)
        with policy.wearing(None):
            _score(read, policy)
        odd, doubt = rehearsal.unlikely(
            lines, bare, policy, parent=parent, parameters=about.total, max_seq_len=max_seq_len
        )
        refused = [why or odd.get(at) for at, why in enumerate(refused)]
    return {
        "path": str(folder),
        "architecture": about.architecture,
        "vocabulary": int(text.get("vocab_size") or template.vocabulary),
        "tokens": template.vocabulary,
        "width": text.get("hidden_size"),
        "parameters": about.total,
        "unscored": unscored,
        "way": str(template.choice.way),
        "explained": template.choice.explained,
        "known": template.choice.known,
        "wrong": template.choice.wrong,
        "conversations": read,
        "refused": refused,
        "doubt": doubt,
        "known_tokens": rehearsal.known_tokens(counted, bare),
    }


def _theirs(each: Conversation, template: Template) -> tuple[int, ...] | None:
    """The prompt as the server itself says that it reads it; None too where the weights lack one of its tokens."""
    if each.get("prompt_ids") and max(each["prompt_ids"]) < template.vocabulary:
        return tuple(each["prompt_ids"])
    if each.get("prompt_ids") or not each.get("prompt_text"):
        return None
    return template.served({"text": each["prompt_text"]}, each.get("prompt_tokens"))


def _read(each: Conversation, theirs: tuple[int, ...] | None, template: Template, tokenizer: Any) -> dict[str, Any]:
    """The conversation as these weights read it, and the answer's tokens; the server's own ids where it tells them."""
    ours = template.as_found(each["messages"])
    reply = each.get("reply_ids") or list(template.reply(each["text"], ended=each["ended"]) if each["text"] else ())
    scored = theirs
    if scored is None and template.choice.wrong is None:
        scored = template.prompt(each["messages"])
    return {
        "prompt_ids": list(ours),
        "rendered": tokenizer.decode(list(ours)),
        # How the server rendered it, in this vocabulary; None: it does not tell, or has tokens that are not in it.
        "theirs": None if theirs is None else tokenizer.decode(list(theirs)),
        "their_tokens": None if theirs is None else len(theirs),
        "scored": list(scored or ours),  # the prompt that the answer's log-probs are computed after, as a run would
        "reply_ids": [int(i) for i in reply] if reply and max(reply) < template.vocabulary else [],
        "logprobs": [],
        "best": [],
    }


def _affordable(parameters: int) -> tuple[Compute | None, str | None]:
    """The number format that there is memory for, else why nothing is computed."""
    free = psutil.virtual_memory().available / GB - SPARE_GB
    for compute, size in (("float32", 4), ("bfloat16", 2)):
        if parameters * size / GB < free:
            return compute, None  # type: ignore[return-value]
    return None, f"the weights need {parameters * 2 / GB:.1f} GB of memory beside the server and {free:.1f} GB are free"


def _policy(folder: Path, compute: Compute, threads: int, adapter: str | None) -> Policy:
    from config import presets
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


def _score(read: Sequence[dict[str, Any]], policy: Policy) -> None:
    """Log-probs of each answer's tokens at temperature 1, and those of the likeliest token in each place."""
    for each in read:
        if not each["reply_ids"]:
            continue
        packed = packing.pack([packing.Tokens(tuple(each["scored"]), tuple(each["reply_ids"]))])
        each["logprobs"] = policy.log_probs(packed).plain.tolist()
        each["best"] = policy.teach(packed, 1).log_probs[:, 0].tolist()


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainer.probe", description="What the weights say to a server's answers.")
    parser.add_argument("weights", help="a local folder or a hub id")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    try:
        found = look(weights.resolve(asked.weights).path, threads=asked.threads, **given)
    except (weights.WeightsError, model_info.ProfileError, RunError, BadLine) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    except (OSError, ValueError, RuntimeError, AssertionError, ImportError) as error:  # files, arrays, a new model kind
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return 1
    print(json.dumps(found), flush=True)
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
