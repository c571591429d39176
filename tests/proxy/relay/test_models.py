"""`GET /v1/models` and one model of it, as SDKs ask: with the name encoded."""

from __future__ import annotations

import openai
import pytest

from scripts.harness.in_process import Proxy


def client(proxy: Proxy) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="x", max_retries=0)


async def test_whatever_is_listed_can_be_looked_at(proxy: Proxy) -> None:
    """Also where the backend has no route for one model, as vLLM's older versions and the built-in backend."""
    async with client(proxy) as sdk:
        listed = [one async for one in sdk.models.list()]
        assert [one.id for one in listed] == ["fake", "fake@base"]
        for one in listed:
            assert await sdk.models.retrieve(one.id) == one


async def test_a_name_with_a_slash(proxy: Proxy) -> None:
    proxy.backend.model = "acme/fake-7b:instruct"
    await proxy.stop()
    await proxy.start()
    async with client(proxy) as sdk:
        assert (await sdk.models.retrieve("acme/fake-7b:instruct")).id == "acme/fake-7b:instruct"
    listed = await proxy.get("/v1/models/acme/fake-7b:instruct")  # curl encodes nothing
    assert listed["id"] == "acme/fake-7b:instruct"


async def test_a_name_that_is_not_listed_is_the_backends_affair(proxy: Proxy) -> None:
    async with client(proxy) as sdk:
        with pytest.raises(openai.NotFoundError, match="has no GET /v1/models/other"):
            await sdk.models.retrieve("other")
