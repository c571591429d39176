"""A chat completion that rlproxy asks by itself: it is not captured and not counted.

Not here: what a client asks (relay), a server's control routes (each backend's own).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp

from config.backend_kinds import BACKENDS
from proxy.backends.base import Address, Backend
from proxy.core.errors import BackendDown
from proxy.core.json_edit import dumps, loads
from proxy.core.redirects import Redirected, redirect_error, refuse_all
from proxy.core.server_url import route_url
from proxy.core.upstream import body_of

OWN_SECTION: Final = "backend"  # section of the settings that has the home's own server
ASK_BYTES: Final = 1 << 25  # of an answer with the log-probs of a long prompt


async def ask(
    backend: Backend, address: Address, body: Mapping[str, Any], timeout_s: float, question: str = "a question"
) -> tuple[int, bytes]:
    """Status and body of the answer. Raises BackendDown, which says `question` was not answered."""
    members = {key: loads(value) for key, value in address.members.items()}
    headers = {**backend.headers(), "content-type": "application/json"}
    with contact(address.url, backend.kind, question, timeout_s):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s), middlewares=(refuse_all,)) as http,
            http.post(
                route_url(address.url, "/v1/chat/completions"), data=dumps({**body, **members}), headers=headers
            ) as response,
        ):
            return response.status, await body_of(response, ASK_BYTES)


@contextmanager
def contact(url: str, kind: str, question: str, timeout_s: float, section: str = OWN_SECTION) -> Iterator[None]:
    """One request to a server, which may not be there or not answer. `section`: of the settings, where its address is.
    Raises BackendDown; BackendBroke where it points elsewhere."""
    try:
        yield
    except Redirected as error:
        raise redirect_error(url, str(error)) from error
    except aiohttp.ServerTimeoutError as error:  # no connection
        raise down_error(url, error, kind, section) from error
    except TimeoutError as error:
        message = f"The backend at {url} did not answer {question} within {timeout_s:g} s; check its log."
        raise BackendDown(message, retry_after=5) from error
    except (aiohttp.ClientError, OSError) as error:
        raise down_error(url, error, kind, section) from error


def down_error(url: str, error: BaseException, kind: str = "", section: str = OWN_SECTION) -> BackendDown:
    command = BACKENDS[kind].start if kind in BACKENDS else ""
    start = f"start it (`{command}`)" if command else "start it"
    start += _unused_proxy(url)
    return BackendDown(
        f"The backend at {url} does not answer ({_reason(error)}); {start}, or correct {section}.url: `rlproxy init` "
        "finds what runs here. Nothing stored was lost.",
        retry_after=5,
    )


def _unused_proxy(url: str) -> str:
    """A clause on a proxy that the environment names for this address, since rlproxy goes through none."""
    scheme, _, place = url.partition("://")
    host = place.partition("/")[0]
    if scheme not in getproxies_environment() or proxy_bypass(host):
        return ""
    return f" ({scheme.upper()}_PROXY is set, and rlproxy goes through no proxy)"


def _reason(error: BaseException) -> str:
    """In a few words: aiohttp's own repeat the address, and have the loop's words for it."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if getattr(cause, "errno", None) == errno.ECONNREFUSED:
        return "connection refused: nothing listens there"
    return (isinstance(cause, OSError) and cause.strerror) or str(cause) or type(error).__name__
