"""What the tests of `rlproxy eval` share: a browser's visit to the page."""

from __future__ import annotations

from tests.proxy.web.pages.conftest import visit as visit  # a fixture
