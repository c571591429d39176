"""The card: lineage, counts, gate and licence, and nothing that anybody wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.cli.model_export.card import UNKNOWN_LICENCE, card, licence_of, lineage


def adapter(version: int, parent: int, **members: Any) -> dict[str, Any]:
    gate = {
        "margin": {"value": 0.12345, "bound": -0.05, "ok": True},
        "topic": {"value": None, "bound": 0.25, "ok": True},
    }
    return {
        "version": version,
        "parent": parent,
        "model": "small",
        "path": "/x",
        "withdrawn": None,
        "gate": gate,
    } | members


def test_the_lineage_goes_back_to_the_base_and_not_through_strangers() -> None:
    adapters = [adapter(1, 0), adapter(2, 1), adapter(3, 1), adapter(4, 3)]
    assert [each["version"] for each in lineage(4, adapters)] == [4, 3, 1]
    assert [each["version"] for each in lineage(4, adapters[2:])] == [4, 3]  # an import: the parent is not here
    assert lineage(9, adapters) == []


def test_a_card_has_counts_and_figures_of_every_version() -> None:
    line = lineage(2, [adapter(1, 0, path=""), adapter(2, 1, withdrawn="rated worse")])
    manifests = {2: {"samples": ["a", "b"], "weights": "org/base", "objective": "mis-po"}}
    text = card(line, manifests, licence_of(None), "A LoRA.")
    assert "base_model: org/base" in text and "license:" not in text and UNKNOWN_LICENCE in text
    assert "| v2 | v1 | 2 | ? |" in text and "| v1 | base | ? | ? |" in text
    assert "| margin | 0.1235 | -0.05 | yes |" in text and "| topic | not taken | 0.25 | yes |" in text
    assert "Rolled back by rlproxy: rated worse" in text


def test_a_version_of_an_earlier_release_tells_what_trained_in_it_once_more() -> None:
    manifest = {"samples": ["a", "b"], "replayed": ["c"], "created": "2026-11-20T08:00:00Z"}
    text = card([adapter(1, 0)], {1: manifest}, licence_of(None), "A LoRA.")
    assert "| v1 | base | 2, and 1 of earlier runs | 2026-11-20 |" in text


def test_no_path_of_this_machine_is_on_the_card() -> None:
    text = card([adapter(1, 0)], {1: {"weights": "/home/ann/models/base"}}, licence_of(None), "A LoRA.")
    assert "base_model" not in text and "/home/ann" not in text and "- Base: base" in text


@pytest.mark.parametrize(
    ("name", "content", "id", "text"),
    [
        (
            "README.md",
            "---\nlibrary_name: x\nlicense: apache-2.0\n---\n# Base",
            "apache-2.0",
            "apache-2.0, as its card says",
        ),
        (
            "README.md",
            "---\nlicense: other\nlicense_name: own\nlicense_link: https://x.example/own\n---\n",
            "other",
            "own, https://x.example/own, as its card says",
        ),
        ("LICENSE", "\n  MIT License\n\nCopyright", None, "MIT License (first line of its file LICENSE)"),
        ("README.md", "# license: mit\n", None, UNKNOWN_LICENCE),
    ],
)
def test_the_licence_of_the_base(tmp_path: Path, name: str, content: str, id: str | None, text: str) -> None:
    (tmp_path / name).write_text(content)
    assert licence_of(tmp_path) == (id, text)
