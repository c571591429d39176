"""Which weights train for a served model: proposals from what its server says of it, best first.

Owns the order of trust and the comparison with a config.json that is here. First comes what is loaded itself, then what
the file says it was made from. What is on this machine under that name follows, and a guess by the family's usual name
is last. A proposal is words for a person; whether the served model really is those weights, rlproxy asks the server
before the first run (proxy.training.weights_check).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from proxy.backends.model_files import read_small
from trainer import launch

# Who publishes a family, by how its name begins. A guess, and said to be one.
HOUSES: Final = {
    "llama-3": "meta-llama", "meta-llama-3": "meta-llama", "qwen": "Qwen", "gemma": "google", "phi": "microsoft",
    "mistral": "mistralai", "ministral": "mistralai", "smollm": "HuggingFaceTB", "deepseek": "deepseek-ai",
    "granite": "ibm-granite", "olmo": "allenai",
}  # fmt: skip
SOURCES: Final = (
    "general.source.huggingface.repository", "general.source.repo_url", "general.source.url", "general.repo_url",
    "general.url",
)  # fmt: skip
TUNES: Final = ("instruct", "it", "chat", "thinking")  # what a publisher calls the tunes of its own base models
BYTES: Final = 2.0  # of one parameter, as models are published


class Proposal(NamedTuple):
    spec: str  # a folder or a hub id: train.weights
    reason: str
    is_local: bool  # on this machine already


def propose(kind: str, model: str, root: str | None, about: Mapping[str, Any]) -> list[Proposal]:
    """`root`: what the server says it has loaded; `about`: what it says of the model, in GGUF's words."""
    reasons: dict[str, str] = {}
    if kind == "mlx":
        reasons[model] = "what mlx_lm.server itself has loaded"
    if root and (_is_id(root) or local(root) is not None):
        reasons[root] = "what the server itself has loaded"
    for spec, reason in _names_in_metadata(about):
        reasons.setdefault(spec, reason)
    names = {_plain(name) for name in _names(model, about)}
    for spec in _local_models():
        if _plain(spec) in names:
            reasons.setdefault(spec, "it has the same name and is on this machine")
    proposals = [Proposal(spec, reason, local(spec) is not None) for spec, reason in reasons.items()]
    plausible = [p for p in proposals if not p.is_local or differs(p.spec, about) is None]
    return plausible[:4]


def out_of_reach(spec: str) -> str | None:
    """Why these weights can neither be found here nor be downloaded; None where they can, or nobody can tell.

    The hub is asked for one small file; without the train or mlx extra nothing here knows how to ask it.
    """
    try:
        return launch.out_of_reach(spec)
    except (ImportError, ValueError):
        return None


def differs(spec: str, about: Mapping[str, Any]) -> str | None:
    """Why weights that are here cannot be the served model's; None where nothing speaks against it."""
    folder = local(spec)
    if folder is None:
        return None
    try:
        config = json.loads(read_small(folder / "config.json"))
    except (OSError, ValueError):
        return None
    text = {**config, **(config.get("text_config") or {})}
    arch = str(about.get("general.architecture") or "")
    pairs = (
        ("layers", about.get(f"{arch}.block_count"), text.get("num_hidden_layers")),
        ("hidden states", about.get(f"{arch}.embedding_length"), text.get("hidden_size")),
        ("attention heads", about.get(f"{arch}.attention.head_count"), text.get("num_attention_heads")),
        ("feed-forward states", about.get(f"{arch}.feed_forward_length"), text.get("intermediate_size")),
    )
    for quantity, served_value, weights_value in pairs:
        if isinstance(served_value, int) and isinstance(weights_value, int) and served_value != weights_value:
            return f"{spec} has {weights_value} {quantity}, the served model {served_value}"
    return None


def parameters(about: Mapping[str, Any]) -> float | None:
    """How many the model has, in billions; from its count, or from a label as `3.2B` or `135M`."""
    if isinstance(count := about.get("general.parameter_count"), int) and count > 0:
        return count / 1e9
    for label in ((about.get("details") or {}).get("parameter_size"), about.get("general.size_label")):
        if match := re.fullmatch(r"(\d+(?:\.\d+)?)([BM])", str(label or "").upper()):
            return float(match[1]) / (1 if match[2] == "B" else 1000)
    return None


def download_gb(about: Mapping[str, Any]) -> float | None:
    billions = parameters(about)
    return None if billions is None else billions * BYTES


# Where names come from


def _names_in_metadata(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Weights that the model's own metadata names, best first."""
    for key in SOURCES:
        if (spec := _repository(about.get(key))) and not spec.lower().endswith("-gguf"):
            yield spec, f"the model's file says so ({key})"
    base = _repository(about.get("general.base_model.0.repo_url"))
    tune = str(about.get("general.finetune") or "").strip()
    if base and base.lower().endswith("-gguf"):
        base = None
    if base and _same_tune(base, tune, about):
        yield base, "the model's file says so (general.base_model)"
    elif base and tune.lower() in TUNES:  # a model card's base is what an instruct model was tuned from: another model
        yield f"{base}-{tune}", f"a guess: the model's file calls itself the {tune} tune of {base}"
    if guess := _of_family(about):
        yield guess


def _same_tune(base: str, tune: str, about: Mapping[str, Any]) -> bool:
    """Tell whether `base` is this very model, and not what it was tuned from."""
    if _plain(base) == _plain(str(about.get("general.name") or "")):
        return True
    family = _plain(str(about.get("general.basename") or ""))
    return bool(tune) and _plain(tune) in _plain(base) and family in _plain(base)


def _of_family(about: Mapping[str, Any]) -> tuple[str, str] | None:
    """The model of that family, size and tune. A tune of no usual name: the one tuned to chat, if it has a template."""
    base, size, tune = (str(about.get(f"general.{key}") or "") for key in ("basename", "size_label", "finetune"))
    if not base or not size:
        return None
    usual = not tune or tune.lower() in TUNES
    known_as = tune if usual else "Instruct" if about.get("tokenizer.chat_template") else ""
    spec = _publisher_name("-".join(part.replace(" ", "-") for part in (base, size, known_as) if part), about)
    source = "the name that the model's file has" if usual else f"the model's file, whose tune is called {tune}"
    return (spec, f"a guess from {source}; look whether it is the one") if spec else None


def _publisher_name(name: str, about: Mapping[str, Any]) -> str | None:
    """The name as its publisher writes it, where that is known."""
    usual = next((owner for start, owner in HOUSES.items() if name.lower().startswith(start)), None)
    owner = usual or str(about.get("general.organization") or "").replace(" ", "-")
    spec = f"{owner}/{name}"
    if spec.lower() == launch.DEFAULT_HUB_ID.lower():
        return launch.DEFAULT_HUB_ID
    return spec if owner else None


def _names(model: str, about: Mapping[str, Any]) -> Iterator[str]:
    """The name as the server says it (llama-server: the file's path), without a file's ending and its quantisation."""
    file = re.sub(r"\.gguf$", "", model.rpartition("/")[2], flags=re.IGNORECASE)
    yield file
    yield re.sub(r"[-_.](i?q\d\w{0,30}|f16|f32|bf16)$", "", file, flags=re.IGNORECASE)
    if name := about.get("general.name"):
        yield str(name)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())


def local(spec: str) -> Path | None:
    """Its folder on this machine. The hub's cache cannot be looked into without the train or mlx extra.

    ValueError: what has a slash and is not a hub id either.
    """
    try:
        return launch.local(spec)
    except (ImportError, ValueError):
        return None


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", text) is not None and not text.startswith(".")


def _repository(value: Any) -> str | None:
    """`owner/name` of an address or of a plain id."""
    text = str(value or "").strip()
    parts = [p for p in (urlsplit(text).path if "://" in text else text).split("/") if p]
    spec = "/".join(parts[:2])
    return spec if len(parts) == 2 and _is_id(spec) else None


def _local_models() -> Iterator[str]:
    """Models that are on this machine: of the hub's cache by their ids, of our own by their folders."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    for folder in sorted(hub.glob("models--*--*")):
        spec = "/".join(folder.name.split("--")[1:3])
        if local(spec) is not None:
            yield spec
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
    for folder in sorted((cache / "rlproxy" / "models").glob("[!.]*")):
        if local(str(folder)) is not None:
            yield str(folder)
