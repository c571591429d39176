"""The servers that run the model: one module each, with the name of its kind and `make`.

`make_backend` imports the one that is chosen: to load them all takes memory and time of every start.
"""

from __future__ import annotations

from importlib import import_module

from config.backend_kinds import BACKENDS
from config.sections import DNS
from config.settings import Settings
from proxy.backends.base import Backend, Capabilities, ModelDescription
from proxy.core.errors import BadRequest
from trainer.launch import Launcher


def make_backend(settings: Settings, launcher: Launcher) -> Backend:
    """Raises BadRequest where the settings name a server but not where it is."""
    chosen = settings.backend
    is_managed = chosen.kind == "llamacpp" and bool(chosen.command)  # rlproxy starts it, one for each version
    needs_url = chosen.kind != "builtin" and not BACKENDS[chosen.kind].port
    if needs_url and not is_managed and not chosen.url:
        raise BadRequest(f"The backend `{chosen.kind}` needs an address: --backend-url http://127.0.0.1:8000")
    if (chosen.replicas or chosen.url.startswith(DNS)) and chosen.kind != "vllm":
        raise BadRequest(f"backend.replicas and {DNS} are for vLLM, and backend.kind is {chosen.kind}.")
    module = import_module(f"proxy.backends.{'llamacpp_managed' if is_managed else chosen.kind}")
    backend: Backend = module.make(settings, launcher)
    return backend


__all__ = ["Backend", "Capabilities", "ModelDescription", "make_backend"]
