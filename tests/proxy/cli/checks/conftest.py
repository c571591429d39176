"""A browser's visit to the page, for the tests of `rlproxy eval`."""

from __future__ import annotations

from tests.proxy.web.pages.conftest import visit as visit  # a fixture
