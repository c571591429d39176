"""Addresses of model servers: the forms in which people write them, and the place of a route at each.

Owns one rule. An address without a path is a server, and routes follow it as they are. An address with a path is the
base of an API, as clouds have it (`/v1beta/openai`, `/api/paas/v4`): a route's `/v1` is left out behind it. Which
addresses are refused belongs to `config.sections`.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

HOSTS_CACHED: Final = 64  # hosts whose reading is remembered: nearly all requests name the same
_LOCAL_NAMES: Final = ("localhost", "ip6-localhost")
_API: Final = "/v1"
_ROUTES: Final = ("/chat/completions", "/completions", "/responses", "/messages", "/models")


@lru_cache(maxsize=HOSTS_CACHED)
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


def base_url(written: str, *, is_root: bool = False) -> str:
    """The address in the form that `route_url` takes: without a slash or a route at its end, and without a lone `/v1`.

    `is_root`: of a server that has routes beside the API (vLLM, llama.cpp, Ollama), so that its path may lack `/v1`.
    """
    url = written.rstrip("/")
    route = next((route for route in _ROUTES if url.endswith(route)), "")
    url = url.removesuffix(route).rstrip("/")
    server = url.removesuffix(_API).rstrip("/")
    if "/" not in server.partition("://")[2]:
        return server
    return f"{server}{_API}" if is_root else url


def route_path(path: str, route: str) -> str:
    """The path of a route at a server whose address has this path."""
    if not path:
        return route
    if route.startswith(_API) and route[len(_API) : len(_API) + 1] in ("", "/", "?"):
        return path + route[len(_API) :]
    return path.removesuffix(_API) + route


def route_url(base: str, route: str) -> str:
    """The address of a route: `/v1/models` at `https://host/v1beta/openai` is `https://host/v1beta/openai/models`."""
    scheme, _, place = base.partition("://")
    host, slash, path = place.partition("/")
    return f"{scheme}://{host}{route_path(slash + path, route)}"
