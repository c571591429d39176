"""Networks and headers of a single sign-on proxy, as settings name them.

Owns what such a text may be. Not here: whom the proxy's word lets in (proxy.access.single_sign_on).
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final

from pydantic import AfterValidator

_HEADER: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_OTHER_USE: Final = ("authorization", "x-api-key", "cookie", "host", "origin")  # headers that rlproxy itself reads


def _network(text: str) -> str:
    """An address or a range. IPv4 is written as IPv4, since that is how a peer is compared."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("it should be an address or a range of them, as 10.0.0.7 or 10.0.0.0/28") from None
    if network.prefixlen == 0:
        raise ValueError("it is every address, so anybody could say who they are")
    if isinstance(network, ipaddress.IPv6Network) and network.overlaps(ipaddress.IPv6Network("::ffff:0:0/96")):
        raise ValueError("it has IPv4 addresses in it, written as IPv6: write them as IPv4")
    return text


def _header(name: str) -> str:
    header = name.lower()
    if not _HEADER.fullmatch(header):
        raise ValueError("it should be the name of a header, as x-auth-request-email")
    if header in _OTHER_USE or header.startswith("x-rl-"):
        raise ValueError("that header says something else to rlproxy")
    return header


Network = Annotated[str, AfterValidator(_network)]
HeaderName = Annotated[str, AfterValidator(_header)]
