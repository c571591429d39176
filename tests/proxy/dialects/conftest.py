"""What several dialects' tests ask with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from scripts.fakes.translating import TranslatingServer
from scripts.harness.in_process import Proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def server() -> AsyncIterator[TranslatingServer]:
    server = TranslatingServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def url(server: TranslatingServer) -> str:
    """Where the client goes."""
    return server.url
