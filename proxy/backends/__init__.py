"""The servers that run the model. One module each; `make_backend` is the one place that knows them all.

It imports the one that is chosen: to load them all takes memory and time of every start.
"""

from __future__ import annotations

from pathlib import Path

from config.sections import BackendSection
from config.settings import Settings
from proxy.backends.base import Backend, Capabilities, ModelDescription
from proxy.core.errors import BadRequest
from proxy.core.server_url import base_url
from trainer.launch import Launcher


def make_backend(settings: Settings, launcher: Launcher) -> Backend:
    """Raises BadRequest where the settings name a server but not where it is."""
    chosen = settings.backend
    if chosen.kind == "builtin":
        from proxy.backends.builtin import Builtin

        return Builtin(settings, launcher)
    if chosen.kind == "ollama":  # it and LM Studio have an address that everybody knows
        from proxy.backends.ollama import Ollama

        return Ollama(settings, launcher)
    if chosen.kind == "lmstudio":
        from proxy.backends.lmstudio import LMStudio

        return LMStudio(settings, launcher)
    if chosen.kind == "llamacpp" and chosen.command:
        from proxy.backends.llamacpp_managed import LlamaManaged

        return LlamaManaged(settings, launcher)
    if not chosen.url:
        raise BadRequest(f"The backend `{chosen.kind}` needs an address: --backend-url http://127.0.0.1:8000")
    if chosen.kind == "llamacpp":
        from proxy.backends.llamacpp import LlamaCpp, LlamaRouter

        return (LlamaRouter if chosen.presets else LlamaCpp)(settings, launcher)
    if chosen.kind == "mlx":
        from proxy.backends.mlx import MLX

        return MLX(settings, launcher)
    return _at_its_url(chosen, settings.train.weights, settings.home)


def _at_its_url(chosen: BackendSection, weights: str, home: Path) -> Backend:
    """Build backends with vLLM's routes, and clouds."""
    if chosen.replicas:
        return _replicas(chosen, weights, home)
    if chosen.kind == "vllm":
        from proxy.backends.vllm import VLLM

        return VLLM(chosen, weights, home)
    if chosen.kind == "sglang":
        from proxy.backends.sglang import SGLang

        return SGLang(chosen, weights, home)
    from proxy.backends.cloud import Cloud

    return Cloud(chosen)


def _replicas(chosen: BackendSection, weights: str, home: Path) -> Backend:
    from proxy.backends.replicas import Replicas
    from proxy.backends.vllm import VLLM

    if chosen.kind != "vllm":
        raise BadRequest(f"backend.replicas are for vLLM, and backend.kind is {chosen.kind}.")
    urls = dict.fromkeys(base_url(url, is_root=True) for url in (chosen.url, *chosen.replicas))
    return Replicas([VLLM(chosen.model_copy(update={"url": url}), weights, home) for url in urls])


__all__ = ["Backend", "Capabilities", "ModelDescription", "make_backend"]
