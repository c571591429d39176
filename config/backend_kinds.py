"""Know each kind of model server by one row: how it is started and found, and what is assumed of its memory.

A new kind is a row here, its name in `BackendKind`, and a module of its name in proxy.backends, with `make`. `rlproxy
init` recognises it by proxy.cli.init.discovery.
Nothing is imported: the command line's help reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

BackendKind = Literal["builtin", "vllm", "sglang", "llamacpp", "ollama", "lmstudio", "mlx", "openai"]
VersionForm = Literal["peft", "gguf", "merged", "mlx"]
GGUF_BITS: Final = 4.9  # a weight of a file as most people have it: Q4_K_M


class BackendTraits(NamedTuple):
    name: str  # as its makers write it
    bits: float  # a weight, as it is mostly served
    version_form: VersionForm | None  # None: it takes no version
    start: str = ""  # the command that starts it; empty where rlproxy does, or nobody can
    port: int = 0  # that everybody knows; 0: its address has to be named
    tells_weights: bool = False  # which weights it runs, so that nobody is asked
    cache_bytes: int = 2  # a number of the cache
    copies: int = 1  # of model and cache on a GPU, with the versions that stay loaded
    rests: bool = True  # gives its memory back while a run trains (train.share_gpu)


# By BackendKind, in the order in which people are told of them.
BACKENDS: Final[Mapping[str, BackendTraits]] = {
    "builtin": BackendTraits("the built-in server", 32, "peft", tells_weights=True, cache_bytes=4),
    "vllm": BackendTraits(
        "vLLM",
        16,
        "peft",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --generation-config vllm",
        tells_weights=True,
    ),
    "sglang": BackendTraits(
        "SGLang",
        16,
        "peft",
        "python -m sglang.launch_server --model-path MODEL --enable-lora --sampling-defaults openai",
        tells_weights=True,
        rests=False,
    ),
    "llamacpp": BackendTraits("llama.cpp", GGUF_BITS, "gguf", "llama-server -m MODEL.gguf", copies=3),
    "ollama": BackendTraits("Ollama", GGUF_BITS, "merged", "ollama serve", port=11434),
    "lmstudio": BackendTraits("LM Studio", GGUF_BITS, "merged", "lms server start", port=1234),
    "mlx": BackendTraits("mlx-lm", 16, "mlx", "mlx_lm.server --model MODEL", tells_weights=True, rests=False),
    "openai": BackendTraits("a cloud", 0, None, cache_bytes=0),
}
LEARNING: Final = tuple(kind for kind, traits in BACKENDS.items() if traits.version_form)
GGUF: Final = tuple(kind for kind, traits in BACKENDS.items() if traits.version_form in ("gguf", "merged"))


def listed(kinds: Iterable[str] = LEARNING) -> str:
    """Put kinds into a sentence, as "vllm, ollama or mlx"."""
    *most, last = kinds
    return f"{', '.join(most)} or {last}" if most else last


def usual_url(kind: str) -> str:
    """The address that this kind has on its own machine; empty where it has none that everybody knows."""
    port = BACKENDS[kind].port
    return f"http://127.0.0.1:{port}" if port else ""
