"""The servers that requests go to: the home's own, and one for each of `[models.NAME]`.

Owns which name is whose. A further model answers under its name, and under the one that its server has for it where no
other has the same. The home's own model comes first. Not here: how a further server is asked (backends.further_model).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.backends.base import Backend
from proxy.backends.further_model import FurtherServer
from proxy.relay.codecs import Formats
from proxy.versions.live_version import Lease
from proxy.versions.named_version import NamedVersion


@dataclass(frozen=True, slots=True, eq=False)
class ModelServer:
    """A server, and which wire formats it has."""

    backend: Backend
    formats: Formats
    section: str  # of the settings, where its address is
    is_further: bool  # its answers never train

    def lease(self) -> Lease:
        """A request's hold on a further model, which has no versions."""
        return Lease(None, None, self.backend.served.model, pinned=False)


def servers_by_name(servers: Mapping[str, FurtherServer]) -> dict[str, ModelServer]:
    """Further servers by each name that a request may have for them."""
    by_name = {
        name: ModelServer(server, Formats(server.capabilities), server.section, is_further=True)
        for name, server in servers.items()
    }
    served = Counter(server.served.model for server in servers.values())
    for name, server in servers.items():
        model = server.served.model
        if model and served[model] == 1:
            by_name.setdefault(model, by_name[name])
    return by_name


def further_of(by_name: Mapping[str, ModelServer], name: NamedVersion) -> ModelServer | None:
    """The further server that a request means by its model; None where it means the home's own."""
    return None if name.is_ours else by_name.get(name.model)
