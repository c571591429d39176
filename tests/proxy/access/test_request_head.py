"""What is read of a head holds for the same head, and for no other."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from proxy.access.security import HEADS, RequestHeads
from proxy.core.errors import BadRequest, HeadTooLarge
from scripts.harness.in_process import Proxy
from tests.proxy.conftest import backend, proxy  # noqa: F401


def request(path: str = "/v1/models", method: str = "GET", **headers: str) -> web.Request:
    return make_mocked_request(method, path, headers=CIMultiDict({k.replace("_", "-"): v for k, v in headers.items()}))


def test_the_same_head_is_read_once_whatever_the_length_of_its_body() -> None:
    heads = RequestHeads()
    first = heads.of(request(content_length="1", x_api_key="a"))
    assert heads.of(request(content_length="22", x_api_key="a")) is first
    for other in (request(x_api_key="b"), request(x_api_key="a", x_rl_user="ann"), request("/v1/other", x_api_key="a"),
                  request(method="POST", x_api_key="a"), request(X_api_keys="a")):  # fmt: skip
        assert heads.of(other) is not first
    assert heads.of(request(x_api_key="b")).key == "b"


def test_only_so_many_short_ones_are_remembered() -> None:
    heads = RequestHeads()
    first = heads.of(request(x_at="0"))
    for at in range(1, HEADS + 1):
        heads.of(request(x_at=str(at)))
    assert heads.of(request(x_at="0")) is not first and len(heads._known) <= HEADS
    assert heads.of(request(x_long="x" * 5000)) is not heads.of(request(x_long="x" * 5000))
    with pytest.raises(HeadTooLarge):
        heads.of(request(x_long="x" * 65_537))


def test_what_is_refused_is_refused_again() -> None:
    heads = RequestHeads()
    for _ in range(2):
        with pytest.raises(BadRequest):
            heads.of(request("/v1/../rl/keys"))


async def test_a_known_head_opens_nothing_for_a_revoked_key(proxy: Proxy) -> None:  # noqa: F811
    async with proxy.http.post("/rl/keys", json={"name": "ann", "role": "use"}) as response:
        key = {"x-api-key": (await response.json())["key"]}
    local = {"x-api-key": proxy.local}
    assert [(await proxy.chat("x", headers=key)).status for _ in range(2)] == [200, 200]
    async with proxy.http.delete("/rl/keys/ann", headers=local) as response:
        assert response.status == 200
    assert (await proxy.chat("x", headers=key)).status == 401
