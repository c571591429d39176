"""The fake Ollama is asked what was asked of the real one (tests/golden/ollama-main/api.json), and answers the same.

Status, content type and bodies are compared. Of a body all members count: what differs by nature (times, sizes,
digests, ids, generated words) by its type, everything else by its value. Where the fake may differ, ALLOWED says why.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scripts.fakes.ollama import FakeOllama
from scripts.golden.corpus import GOLDEN

RECORDED: list[dict[str, Any]] = json.loads((GOLDEN / "ollama-main" / "api.json").read_text(encoding="utf-8"))
BY_NAME = {one["name"]: one for one in RECORDED}
# What the recording names by its size or digest only, and what stands for it here.
MODEL, ADAPTER, TEXT = b"GGUF golden", b"GGUF a LoRA for smol", b"this is not GGUF."
CONTENT = {"<56828416 bytes>": MODEL, "<19566656 bytes>": ADAPTER, "<17 bytes>": TEXT, "<5 bytes>": b"{nope"}
STANDS_FOR = {
    "ab24f7be4f90b7b92604705ae0ab1e0f658cfc259362f9ca92371cf17bcc6a04": MODEL,
    "871a5ead65dfa665a0c6e192b6320f2f64f7f8fddd6455a1e0c665053e18a862": ADAPTER,
    "6d600c986af0146713c5c43c8452cfc7b6c4dd5c0f0aeb5a1b1c0cfc73957ec6": TEXT,
}
BY_TYPE = {
    "created_at", "modified_at", "expires_at", "created", "id", "request_id", "digest", "size", "size_vram",
    "parameter_size", "quantization_level", "context_length", "embedding_length", "total_duration", "load_duration",
    "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration",
}  # fmt: skip
# Members that are compared by their type only, in the answer to one request; `*`: nothing is compared. And why.
ALLOWED: dict[str, tuple[set[str], str]] = {
    "blob-upload-lora": ({"*"}, "the real one resets the connection of an upload that it need not read, where it is "
                         "larger than the socket's buffers; this one is 20 bytes"),
    "ps": ({"models"}, "two of `golden` were in memory: one had been made anew"),
    "cut": ({"content"}, "generated"),
    "show": ({"model_info", "tensors"}, "taken from the recording, not made"),
}  # fmt: skip


def as_recorded(folder: Path) -> FakeOllama:
    """With the models that the recorded one had. Its label was 0.34.1, its source still took LoRA files."""
    fake = FakeOllama(folder, "0.34.1")
    fake.lora = True
    fake.models.clear()
    smol, golden = json.loads(BY_NAME["show-system"]["body"]), json.loads(BY_NAME["show"]["body"])
    base = fake.keep(b"GGUF smol")
    for name, shown, file in (("golden", golden, fake.keep(b"GGUF golden before")), ("smol", smol, base)):
        about = {key: shown[key] for key in ("template", "system", "model_info", "tensors") if key in shown}
        stops = re.findall(r"PARAMETER stop (.*)", shown["modelfile"])
        fake.add(f"{name}:latest", file, parameters={"stop": stops}, **about)
    fake.models["smol-rl:v1"] = {**fake.models["smol:latest"], "parent": "smol:latest"}
    fake.models["smollm2:135m"] = fake.models["smol:latest"]
    fake.loaded = ["golden:latest"]
    fake.made_for[f"sha256:{hashlib.sha256(ADAPTER).hexdigest()}"] = base
    fake.keep(ADAPTER)  # it was there already
    return fake


def here(text: str) -> str:
    """With the digests of what stands for the recorded files."""
    for digest, content in STANDS_FOR.items():
        text = text.replace(digest, hashlib.sha256(content).hexdigest())
    return text.replace('<\\"word \\" 6000 times>', "word " * 6000)


def without_paths(text: str) -> str:
    """Folders and digests are those of a machine."""
    text = re.sub(r"[\w./-]*/blobs/sha256[:-][0-9a-f]{64}", "BLOB", text)
    return re.sub(r"sha256:[0-9a-f]{64}", "DIGEST", text)


def alike(value: Any, by_type: set[str], key: str = "") -> Any:
    if key in by_type:
        return "a number" if isinstance(value, (int, float)) else type(value).__name__
    if isinstance(value, dict):
        return {k: alike(v, by_type, k) for k, v in value.items()}
    if isinstance(value, list):
        found = [alike(one, by_type, key) for one in value]
        return sorted(found, key=json.dumps) if key in ("models", "data") else found  # by their age, there
    return without_paths(value) if isinstance(value, str) else value


def compared(status: int, headers: Mapping[str, str], body: str, by_type: set[str]) -> list[Any]:
    """Status, content type (of what has a body), and the body or its lines."""
    if "*" in by_type:
        return []
    kind = {k.lower(): v for k, v in headers.items()}.get("content-type") if body else None
    lines = (
        body.splitlines() if kind in ("application/x-ndjson", "text/plain; charset=utf-8") else [body] if body else []
    )
    return [status, kind, [alike(json.loads(line), by_type) if line[:1] in "{[" else line for line in lines]]


async def ask_all(fake: FakeOllama) -> dict[str, tuple[int, dict[str, str], str]]:
    """The recorded requests in their order: each finds what those before it have left."""
    found = {}
    await fake.start()
    async with aiohttp.ClientSession(base_url=fake.url) as http:
        for recorded in RECORDED:
            request = recorded["request"]
            data = CONTENT[request] if isinstance(request, str) else request and here(json.dumps(request)).encode()
            async with http.request(recorded["method"], here(recorded["path"]), data=data) as response:
                found[recorded["name"]] = (response.status, dict(response.headers), await response.text())
    await fake.stop()
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, dict[str, str], str]]:
    return asyncio.run(ask_all(as_recorded(tmp_path_factory.mktemp("ollama"))))


@pytest.mark.parametrize("name", BY_NAME)
def test_it_answers_as_the_real_one(answers: dict[str, tuple[int, dict[str, str], str]], name: str) -> None:
    recorded, by_type = BY_NAME[name], BY_TYPE | ALLOWED.get(name, (set(), ""))[0]
    expected = compared(recorded["status"], recorded["headers"], recorded["body"], by_type)
    assert compared(*answers[name], by_type) == expected


def test_every_difference_that_is_allowed_is_there() -> None:
    assert ALLOWED.keys() <= BY_NAME.keys() and all(why for _, why in ALLOWED.values())
    assert len(BY_NAME) == len(RECORDED)
