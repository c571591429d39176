"""Redirects: rlproxy follows none, neither with a request of its own nor with a client's.

With a redirect a server chooses where the request goes next, with its body and its key. That may be another machine,
or rlproxy's own control routes, where it would act as the owner. Owns which answers are redirects and the
error that names where one pointed. Not here: the request (backends, signals, feedback, relay).
"""

from __future__ import annotations

import urllib.request
from http.client import HTTPResponse
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp

from proxy.core.backend_answer import Answer
from proxy.core.errors import BackendBroke

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
LONGEST: Final = 200  # characters of an address in an error


class Redirected(aiohttp.ClientError):
    """A request of rlproxy's own got a redirect. Its text goes on after the server's address."""


def refuse(url: str, answer: Answer) -> None:
    """Raises BackendBroke where this answer of the server at `url` is a redirect: its client would follow it."""
    if answer.status in REDIRECTS and "location" in answer.headers:
        answer.close()
        raise redirect_error(url, _in_words(url, answer.status, answer.headers["location"]))


async def refuse_all(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """For the `middlewares` of a session, which then follows no redirect, whatever a call says. Raises Redirected."""
    response = await handler(request)
    if response.status in REDIRECTS and "location" in response.headers:
        response.close()
        raise Redirected(_in_words(str(request.url), response.status, response.headers["location"]))
    return response


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def open_url(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """The answer to a command's own request, which follows no redirect. Raises OSError; of it HTTPError."""
    response: HTTPResponse = urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s)
    return response


def redirect_error(url: str, words: str) -> BackendBroke:
    return BackendBroke(f"The backend at {url} {words}. If the server itself answers there, make that backend.url.")


def _in_words(url: str, status: int, location: str) -> str:
    return f"answered {status}, a redirect to {_place(url, location)}; rlproxy follows none, so nothing was sent there"


def _place(url: str, location: str) -> str:
    """An address as it may be shown: without its query, which may hold a key."""
    try:
        parts = urlsplit(urljoin(url, location))
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "what is not an address"
    place = f"{parts.scheme}://{host}{parts.path}"[:LONGEST]
    return place if place.isprintable() else repr(place)[1:-1]
