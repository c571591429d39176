"""The servers that run the model. One module each; `make_backend` is the one place that knows them all."""

from __future__ import annotations

from config.sections import Backend as BackendSection
from config.settings import Settings
from proxy.backends.base import Backend, Capabilities, Told
from proxy.backends.builtin import Builtin
from proxy.backends.cloud import Cloud
from proxy.backends.llamacpp import LlamaCpp, LlamaRouter
from proxy.backends.llamacpp_managed import LlamaManaged
from proxy.backends.lmstudio import LMStudio
from proxy.backends.mlx import MLX
from proxy.backends.ollama import Ollama
from proxy.backends.openai import OpenAICompatible
from proxy.backends.replicas import Replicas
from proxy.backends.sglang import SGLang
from proxy.backends.vllm import VLLM
from proxy.errors import BadRequest
from trainer.launch import Launcher


def make_backend(settings: Settings, launcher: Launcher) -> Backend:
    """Raises BadRequest where the settings name a server but not where it is."""
    chosen = settings.backend
    if chosen.kind == "builtin":
        return Builtin(settings, launcher)
    if chosen.kind == "llamacpp" and chosen.command:
        return LlamaManaged(settings, launcher)
    if chosen.kind in ("ollama", "lmstudio"):  # they have an address that everybody knows
        return (Ollama if chosen.kind == "ollama" else LMStudio)(settings, launcher)
    if not chosen.url:
        raise BadRequest(f"The backend `{chosen.kind}` needs an address: --backend-url http://127.0.0.1:8000")
    if chosen.kind == "llamacpp":
        return (LlamaRouter if chosen.presets else LlamaCpp)(settings, launcher)
    if chosen.kind == "mlx":
        return MLX(settings, launcher)
    if chosen.replicas:
        return _replicas(chosen)
    kinds: dict[str, type[OpenAICompatible]] = {"vllm": VLLM, "sglang": SGLang, "openai": Cloud}
    return kinds[chosen.kind](chosen)


def _replicas(chosen: BackendSection) -> Replicas:
    if chosen.kind != "vllm":
        raise BadRequest(f"backend.replicas are for vLLM, and backend.kind is {chosen.kind}.")
    urls = dict.fromkeys(url.rstrip("/").removesuffix("/v1") for url in (chosen.url, *chosen.replicas))
    return Replicas([VLLM(chosen.model_copy(update={"url": url})) for url in urls])


__all__ = ["Backend", "Capabilities", "Told", "make_backend"]
