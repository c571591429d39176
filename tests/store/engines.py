"""Which engines a test runs on: both, or SQLite alone where it looks at the file, its log, or its query plans."""

from __future__ import annotations

from typing import Final

import pytest

ENGINES: Final = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))
in_file = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
