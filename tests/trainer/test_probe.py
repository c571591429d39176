"""What the weights say to a server's answers: as a run would compute it, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.harness import tiny
from trainer import probe
from trainer.launch import LaunchError, LocalLauncher

CHAT = [{"role": "user", "content": "Größe 3.14"}]


def asked(**more: object) -> dict[str, object]:
    return {"messages": CHAT, "text": "", "ended": False, "prompt_ids": None, "reply_ids": None, **more}


def test_its_own_greedy_reply_is_the_likeliest(model: Path) -> None:
    policy = tiny.policy(model)
    prompt = policy.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    (reply,) = policy.generate([prompt], max_tokens=8, temperature=0, seed=0)
    found = probe.look(model, [asked(prompt_ids=prompt, reply_ids=reply)], threads=1)
    (read,) = found["conversations"]
    assert read["prompt_ids"] == prompt and read["theirs"] == read["rendered"] and "Größe 3.14" in read["rendered"]
    assert read["reply_ids"] == reply and len(read["logprobs"]) == len(reply)
    assert read["best"] == pytest.approx(read["logprobs"], abs=1e-5) and max(read["logprobs"]) <= 0
    assert (found["architecture"], found["vocabulary"], found["width"]) == ("llama", 259, 64)
    assert found["unscored"] is None


def test_a_reply_without_ids_is_read_as_text_with_its_end(model: Path) -> None:
    (open_end, whole) = probe.look(model, [asked(text="hi"), asked(text="hi", ended=True)], threads=1)["conversations"]
    assert whole["reply_ids"] == [*open_end["reply_ids"], 2] and open_end["theirs"] is None
    assert whole["logprobs"][:2] == pytest.approx(open_end["logprobs"])
    assert [b >= p for b, p in zip(whole["best"], whole["logprobs"], strict=True)]


def test_tokens_that_the_weights_do_not_have(model: Path) -> None:
    (read,) = probe.look(model, [asked(prompt_ids=[1, 300], reply_ids=[5, 300])], threads=1)["conversations"]
    assert read["theirs"] is None and read["reply_ids"] == [] and read["logprobs"] == []


def test_weights_that_do_not_fit_beside_the_server_are_not_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SPARE_GB", 1e6)
    found = probe.look(model, [asked(text="hi")], threads=1)
    assert "GB of memory" in found["unscored"] and found["conversations"][0]["logprobs"] == []
    assert found["conversations"][0]["prompt_ids"] and found["vocabulary"] == 259


async def test_as_a_child(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "match.log"
    found = await LocalLauncher().probe(str(model), {"conversations": [asked(text="hi")]}, threads=1, nice=5, log=log)
    assert found["parameters"] > 0 and len(found["conversations"][0]["logprobs"]) == 2
    with pytest.raises(LaunchError, match=r"There is no folder /nowhere"):
        await LocalLauncher().probe("/nowhere/at/all", {"conversations": []}, threads=1, nice=5, log=log)
    (model.parent / "broken").mkdir()
    (model.parent / "broken" / "config.json").write_text("{}")
    (model.parent / "broken" / "x.safetensors").write_bytes(b"rot")
    with pytest.raises(LaunchError):
        await LocalLauncher().probe(
            str(model.parent / "broken"), {"conversations": [asked()]}, threads=1, nice=5, log=log
        )


async def test_it_ends_with_whoever_asked(model: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trainer.probe", str(model), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps({"conversations": [asked(text="x" * 300)] * 500}).encode() + b"\n")
    child.stdin.close()  # as the kernel does for a killed proxy
    out, _ = await child.communicate()
    assert child.returncode in (1, -signal.SIGKILL) and out == b""
