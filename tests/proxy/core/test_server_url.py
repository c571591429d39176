"""Where a route is at a server, for every form of address that people write."""

from __future__ import annotations

import pytest

from proxy.core.http_message import address_of
from proxy.core.server_url import base_url, route_path, route_url

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("written", "chat"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1//", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/chat/completions/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/chat/completions", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/models", "http://h:8000/v1/chat/completions"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ("https://h/v1beta/openai/chat/completions", "https://h/v1beta/openai/chat/completions"),
        ("https://h/api/paas/v4/", "https://h/api/paas/v4/chat/completions"),
        ("https://h/api/v3", "https://h/api/v3/chat/completions"),
        ("https://h/api/v1", "https://h/api/v1/chat/completions"),
        ("https://h/openai/v1/responses", "https://h/openai/v1/chat/completions"),
        ("https://h/inference", "https://h/inference/chat/completions"),
    ],
)
def test_an_address_with_a_path_is_taken_as_it_is(written: str, chat: str) -> None:
    assert route_url(base_url(written), CHAT) == chat
    address = address_of(base_url(written))  # the relay's own connections agree
    path = route_path(address.path, CHAT)
    assert chat.endswith(path) and path.count("chat/completions") == 1


@pytest.mark.parametrize("written", ["http://h/vllm", "http://h/vllm/", "http://h/vllm/v1", "http://h/vllm/v1/models"])
def test_a_server_with_routes_of_its_own_has_them_behind_its_path(written: str) -> None:
    base = base_url(written, is_root=True)
    assert route_url(base, CHAT) == "http://h/vllm/v1/chat/completions"
    assert route_url(base, "/tokenize") == route_path(address_of(base).path, "/tokenize").join(("http://h", ""))
    assert route_url(base, "/tokenize") == "http://h/vllm/tokenize"


def test_routes_beside_the_api() -> None:
    assert route_url("http://h", "/api/tags") == "http://h/api/tags"
    assert route_url(base_url("http://h/gate/v1"), "/api/tags") == "http://h/gate/api/tags"
    assert route_path(address_of("http://h").path, "/v1/models?a=b") == "/v1/models?a=b"
    assert route_path(address_of("https://h/v1beta/openai").path, "/v1/models?a=b") == "/v1beta/openai/models?a=b"
    assert route_path(address_of("https://h/v1beta/openai").path, "/v1x") == "/v1beta/openai/v1x"
