"""Which extra is missing, the exact command, and what pip says it would take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.init import extras
from proxy.cli.init.extras import CannotInstall, command, download, install, missing
from tests.proxy.cli.init.wheels import tiny_wheel


def test_pip_takes_the_extras_of_what_is_installed() -> None:
    """And asks no index for rlproxy: another one may have that name there."""
    found = command(("mlx", "gguf"))
    assert found == [sys.executable, "-P", "-m", "pip", "install", "rlproxy[mlx,gguf]"]
    without_index = [*found[:-1], "--no-index", "--no-deps", found[-1]]
    assert download(without_index) == extras.Download([], 0.0, False)


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
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    found = download(pip)
    assert found.packages == ["rlproxy-tiny==1.2"] and found.gb == 0 and not found.cuda and not target.exists()
    install(pip)
    assert (target / "rlproxy_tiny.py").exists()


def test_what_pip_cannot_find(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "rlproxy-is-not-there"]
    with pytest.raises(CannotInstall, match="pip cannot install it"):
        download(pip)
    with pytest.raises(CannotInstall, match="status 1"):
        install(pip)


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
