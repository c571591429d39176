"""Files of `rlproxy export --format` in TRL itself, from PyPI: each is loaded, and its own trainer takes a step.

Real: TRL, its trainers, the proxy, the export. The model is tiny and random. `make test-trl` installs TRL and runs
these.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.exports.formats import FORMATS
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness import tiny

pytestmark = [pytest.mark.trl, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlproxy/venvs/trl/bin/python"
# ChatML with tools, as Qwen's: schemas in the system text, arguments as JSON.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | map('tojson') | join('\n')) + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}{{ '<call>' + c['function']['name'] + ' ' }}"
    "{{ c['function']['arguments'] if c['function']['arguments'] is string else c['function']['arguments'] | tojson }}"
    "{{ '</call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


LOOK, ADD = (
    tool("look", at={"type": "string"}),
    tool("add", numbers={"type": ["array", "null"]}, exact={"type": "integer"}),
)


def calling(name: str, **arguments: Any) -> list[dict[str, Any]]:
    call = {"function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "user", "content": f"Please {name}"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": f"c-{name}", "type": "function", **call}]},
        {"role": "tool", "tool_call_id": f"c-{name}", "content": "done"},
    ]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tiny.make_model(tmp_path / "model")
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("format", FORMATS)
async def test_trl_loads_the_file_and_takes_a_step(cli: Proxy, model: Path, tmp_path: Path, format: str) -> None:
    for messages, tools in (
        ([{"role": "user", "content": "Hi"}], None),
        (calling("look", at="sky"), [LOOK]),
        (calling("add", numbers=[1, 2], exact=1), [LOOK, ADD]),
        (calling("look", at={"x": 1}), [LOOK]),  # arguments of another type than elsewhere
    ):
        for rating in ({"rating": "good"}, {"rating": "bad", "correction": "Better."}):
            body = {"model": "fake", "messages": messages, **({"tools": tools} if tools else {})}
            async with cli.http.post("/v1/chat/completions", json=body) as answer:
                assert (await cli.rate(completion_id=answer.headers["x-rl-completion-id"], **rating))[0] == 201
    file = tmp_path / "out.jsonl"
    assert (await rlproxy(cli.home, "export", "--format", format, "-o", str(file)))[0] == 0
    written = [json.loads(row) for row in file.read_text().splitlines()]
    rows = await step(format, file, model)
    assert len(rows) == len(written) == {"trl-dpo": 4, "trl-kto": 12}.get(format, 8)
    texts = ["".join(row.values()) for row in rows]
    assert sum("<|im_start|>user\nHi" in text or "<|im_start|>human\nHi" in text for text in texts)
    if format != "sharegpt":  # TRL renames its members, and not its speakers: a call is a text there
        for text, row in zip(texts, written, strict=True):
            messages = row.get("messages") or [*row["prompt"], *(row.get("completion") or row["chosen"])]
            assert text.startswith(rendered(messages, row.get("tools")).split("<|im_start|>assistant\n")[0])
            for call in (call for message in messages for call in message.get("tool_calls") or ()):
                arguments = call["function"]["arguments"]
                shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
                assert f"<call>{call['function']['name']} {shown}</call>" in text


def rendered(messages: list[dict[str, Any]], tools: Any) -> str:
    """The prompt as the template writes it of the row itself, without Arrow in between."""
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    tools = json.loads(tools) if isinstance(tools, str) else tools
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))


async def step(format: str, file: Path, model: Path) -> list[dict[str, str]]:
    """Rows as the trainer has tokenised them."""
    script = ROOT / "integrations/trl/one_step.py"
    env = {"PATH": os.environ["PATH"], "HOME": str(file.parent), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = await asyncio.create_subprocess_exec(
        str(PYTHON), str(script), format, str(file), str(model),
        env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-4000:]
    result = json.loads(out.decode().splitlines()[-1])
    assert result["moved"] and result["loss"] > 0
    rows: list[dict[str, str]] = result["rows"]
    return rows
