"""Which extra is missing, the exact command, and what pip says it would take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.init import extras
from proxy.cli.init.extras import CannotInstall, download, install, missing, needed, requirements
from tests.proxy.cli.init.wheels import tiny_wheel

DECLARED = [
    "aiohttp<4,>=3.14", 'torch==2.13.0; extra == "train"', "gguf<0.20; extra == 'gguf'",
    'mlx[cpu]<0.33,>=0.32; sys_platform == "linux" and extra == "mlx"', 'mlx-lm>=0.32; extra == "mlx"',
]  # fmt: skip


def test_the_requirements_of_an_extra() -> None:
    assert requirements(DECLARED, "train") == ["torch==2.13.0"]
    assert requirements(DECLARED, "mlx") == ['mlx[cpu]<0.33,>=0.32; sys_platform == "linux"', "mlx-lm>=0.32"]
    assert requirements(DECLARED, "unheard-of") == []


def test_the_command_names_every_package_of_the_real_extra() -> None:
    command = needed(("train",)).command
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "install"]
    assert [word for word in command if word.startswith("torch")] == ["torch==2.13.0"]
    assert any(word.startswith("peft") for word in command) and not any("extra" in word for word in command)


@pytest.mark.parametrize(
    ("kind", "weights", "accelerator", "here", "expected"),
    [
        ("builtin", "", "cpu", (), ("train",)),
        ("builtin", "", "metal", (), ("train",)),
        ("ollama", "", "cpu", (), ()),
        ("ollama", "a/b", "cpu", (), ("train",)),
        ("ollama", "a/b", "metal", (), ("mlx", "gguf")),
        ("ollama", "a/b", "metal", ("mlx_lm", "transformers", "safetensors"), ("gguf",)),
        ("vllm", "", "cuda", (), ("train",)),
        ("mlx", "", "metal", (), ("mlx",)),
        ("openai", "", "cpu", (), ()),
        ("vllm", "", "cuda", ("torch", "transformers", "peft", "safetensors", "gguf"), ()),
    ],
)
def test_which_extras_are_missing(
    monkeypatch: pytest.MonkeyPatch, kind: str, weights: str, accelerator: str, here: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.setattr(extras, "find_spec", lambda name: object() if name in here else None)
    assert missing(kind, weights, accelerator) == expected


def test_what_the_real_pip_would_take_and_takes(tmp_path: Path) -> None:
    """A wheel of ours, into a folder of its own: no index is asked."""
    wheel = tiny_wheel(tmp_path, "rlproxy-tiny", "1.2")
    target = tmp_path / "target"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    found = download(command)
    assert found.packages == ["rlproxy-tiny 1.2"] and found.gb == 0 and not found.cuda and not target.exists()
    install(extras.Needed(("train",), command))
    assert (target / "rlproxy_tiny.py").exists()


def test_what_pip_cannot_find(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-index", "rlproxy-is-not-there"]
    with pytest.raises(CannotInstall, match="pip cannot install it"):
        download(command)
    with pytest.raises(CannotInstall, match="status 1"):
        install(extras.Needed(("train",), command))


def test_the_cuda_build_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def item(name: str, url: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "version": "1"}, "download_info": {"url": url}}

    def pip(report: dict[str, Any]) -> None:
        done = subprocess.CompletedProcess([], 0, json.dumps(report), "")
        monkeypatch.setattr(extras.subprocess, "run", lambda *a, **k: done)

    pip({"install": [item("torch", "file:///x"), item("nvidia-cublas", "git+ssh://x")]})
    found = download([])
    assert found.cuda and found.gb is None, "a size that is not known is not made up"
    pip({"install": []})
    assert download([]) == extras.Download([], 0.0, False)
