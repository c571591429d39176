"""Single sign-on: a person of the page, as the header of a proxy in front names them.

Owns which proxy is believed, by the address of its connection alone, and what its header may say. The person gets the
role of the key that bears their name (`rlproxy keys create`); nobody else gets in by it. Not here: OpenID Connect
itself, which the proxy speaks (oauth2-proxy), and the page's cookies (proxy.web.pages.session).
"""

from __future__ import annotations

import ipaddress
from typing import Final

from aiohttp import web

from config.sections import ServerSection
from proxy.access.keys import NAME, Keys, Principal
from proxy.core.errors import BadRequest, Forbidden

# What such a proxy says of a person. No backend has any business with it, and there may be a token among it.
_PREFIX: Final = "x-auth-request-"
_FORWARDED: Final = tuple(
    f"x-forwarded-{part}" for part in ("user", "email", "groups", "preferred-username", "access-token")
)


class SingleSignOn:
    def __init__(self, settings: ServerSection, keys: Keys) -> None:
        self._networks = [ipaddress.ip_network(text) for text in settings.sso_proxies]
        self._header = settings.sso_header
        self._keys = keys

    def principal(self, request: web.Request) -> Principal | None:
        """Find whom a trusted proxy names; None where none does. Raises BadRequest, Forbidden."""
        if not self._networks or self._header not in request.headers or not self._is_trusted(request.remote):
            return None
        names = request.headers.getall(self._header)
        if len(names) > 1:
            raise BadRequest(f"The header {self._header} came {len(names)} times; nothing was done.")
        name = names[0].strip()
        principal = self._keys.by_name(name) if NAME.fullmatch(name) else None
        if principal is None:
            raise Forbidden(
                f"You have signed in as {name[:100]!r}, and no key of this rlproxy has that name, so it shows you "
                "nothing. An admin lets you in: `rlproxy keys create --role rate --name NAME`."
            )
        return principal

    def _is_trusted(self, peer: str | None) -> bool:
        """Tell by the connection's other end. What a header says of addresses proves nothing."""
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def is_identity(header: str, settings: ServerSection) -> bool:
    """Tell if a header, in lower case, says who a person is, where such headers are in use."""
    return bool(settings.sso_proxies) and (
        header == settings.sso_header or header.startswith(_PREFIX) or header in _FORWARDED
    )
