"""Which parts of a message are pictures, and their bytes."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from proxy.images.parts import count_images, from_base64, image_urls, inline_bytes, is_inline

DATA = random.Random(1).randbytes(300)
CODED = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    ("part", "url"),
    [
        ({"type": "image_url", "image_url": {"url": "data:;base64,AA", "detail": "low"}}, "data:;base64,AA"),
        ({"type": "image_url", "image_url": "https://x/y.png"}, "https://x/y.png"),
        ({"type": "input_image", "image_url": "data:x"}, "data:x"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, None),
        ({"type": "image_url"}, None),
        ({"type": "image_url", "image_url": {"url": 3}}, None),
    ],
)  # fmt: skip
def test_the_url_of_a_picture(part: dict[str, Any], url: str | None) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "image_url"}, part, "image"]}
    assert list(image_urls(message)) == [url] and count_images(message) == 1


@pytest.mark.parametrize("content", ["image_url", None, 3, [], [{"type": "text"}], [{"type": ["image"]}]])
def test_what_has_none(content: Any) -> None:
    assert count_images({"role": "user", "content": content}) == 0


@pytest.mark.parametrize(
    "text",
    [
        CODED,
        CODED.rstrip("="),
        base64.urlsafe_b64encode(DATA).decode(),
        base64.encodebytes(DATA).decode(),
        base64.encodebytes(DATA).decode().replace("\n", r"\r\n"),  # as JSON has it in the store
    ],
)
def test_every_form_of_base64(text: str) -> None:
    assert from_base64(text.encode()) == DATA
    assert inline_bytes(f"DATA:image/png;charset=x;base64,{text}") == DATA


@pytest.mark.parametrize(
    "url", [None, "", "https://x/;base64,AAAA", "data:image/svg+xml,<svg/>", "data:;base64", "data:;base64,A",
            "data:;base64,é", "data:" + "x" * 10_000 + ";base64,AAAA", "data:;base64,AA*A"],
)  # fmt: skip
def test_what_is_not_base64_has_no_bytes(url: str | None) -> None:
    assert inline_bytes(url) is None
    assert is_inline(url) == bool(url and url.startswith("data:"))
