from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path)
    yield opened
    await opened.close()
