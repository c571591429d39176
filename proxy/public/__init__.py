"""The package `rlproxy` of an installed wheel: rating from a program, under the product's own name.

Owns nothing: `proxy.client` has the code, and its name keeps working.
"""

from proxy.client import (
    AsyncClient,
    Client,
    NotTrained,
    Rating,
    Refused,
    RlproxyError,
    Status,
    Unreachable,
    Version,
)

__all__ = [
    "AsyncClient", "Client", "NotTrained", "Rating", "Refused", "RlproxyError", "Status", "Unreachable", "Version",
]  # fmt: skip
