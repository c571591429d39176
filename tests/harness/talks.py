"""What a client asks of a proxy and reads back, in several tests."""

from __future__ import annotations

import json
from typing import Any


def events(raw: bytes) -> list[Any]:
    found = [e.removeprefix(b"data: ") for e in raw.split(b"\n\n") if e.startswith(b"data: ")]
    return [e if e == b"[DONE]" else json.loads(e) for e in found]
