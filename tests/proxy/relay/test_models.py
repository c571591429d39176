"""`GET /v1/models` and one model of it, as SDKs ask: with the name encoded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import with_versions


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


@pytest.fixture
async def claude(proxy: Proxy) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key="x", max_retries=0) as claude:
        yield claude


async def test_a_client_of_anthropics_reads_its_own_form(proxy: Proxy, claude: anthropic.AsyncAnthropic) -> None:
    proxy.backend.window = 4096
    listed = [model async for model in claude.models.list()]
    assert [(model.type, model.id, model.display_name) for model in listed] == [
        ("model", "fake", "fake"),
        ("model", "fake@base", "fake@base"),
    ]
    assert listed[0].max_input_tokens == 4096 and listed[0].created_at.year == 1970
    for model in listed:
        assert await claude.models.retrieve(model.id) == model
    with pytest.raises(anthropic.NotFoundError) as refusal:
        await claude.models.retrieve("other")
    assert refusal.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "The model 'other' is not in the list of this backend; GET /v1/models has it.",
        },
        "request_id": None,
    }


async def test_pages_of_models(proxy: Proxy, claude: anthropic.AsyncAnthropic) -> None:
    await with_versions(proxy, 1, 2)
    names = ["fake", "fake@base", "fake@v1", "fake@v2"]
    first = await claude.models.list(limit=3)
    assert [model.id for model in first.data] == names[:3] and first.has_more is True
    assert [model.id async for model in claude.models.list(limit=3)] == names
    assert [model.id async for model in claude.models.list(limit=1, before_id="fake@v2")] == names[2::-1]
    for members in ({"limit": 0}, {"after_id": "other"}, {"before_id": "other"}):
        with pytest.raises(anthropic.BadRequestError) as refusal:
            await claude.models.list(**members)  # type: ignore[arg-type]
        assert refusal.value.body["type"] == "error"  # type: ignore[index,call-overload]
