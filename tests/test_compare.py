"""docs/lab/compare.md: each cell has a source; what it says of rlproxy names tests, scripts or pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/lab/compare.md").read_text(encoding="utf-8")
PEERS = (
    ("ReinforceClaw", "OpenClaw-RL", "MetaClaw", "CLaaS", "agent-lightning"),
    ("LiteLLM", "TensorZero", "Open WebUI"),
)
NOTES: dict[str, str] = dict(re.findall(r"^\[\^([\w-]+)\]: (.+)$", PAGE, re.MULTILINE))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def table(peers: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    head = f"| | rlproxy | {' | '.join(peers)} |"
    assert PAGE.count(head) == 1
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()
    return cells(lines[0]), [cells(line) for line in lines[2:]]


def keys(text: str) -> list[str]:
    return re.findall(r"\[\^([\w-]+)\]", text)


@pytest.mark.parametrize("peers", PEERS)
def test_each_cell_says_something_and_has_a_source(peers: tuple[str, ...]) -> None:
    head, rows = table(peers)
    assert len(rows) >= 14
    for row in rows:
        assert len(row) == len(head), row
        for name, cell in zip(head[1:], row[1:], strict=True):
            assert re.sub(r"\[\^[\w-]+\]", "", cell).strip(), f"{row[0]}, {name}: empty"
            found = keys(cell)
            assert found, f"{row[0]}, {name}: no source"
            assert all((key.startswith("us-")) == (name == "rlproxy") for key in found), f"{row[0]}, {name}: {found}"


def test_both_tables_say_the_same_of_us_row_by_row() -> None:
    first, second = (table(peers)[1] for peers in PEERS)
    assert [row[:2] for row in first] == [row[:2] for row in second]


def test_footnotes_are_there_once_and_used() -> None:
    text, _, sources = PAGE.partition("## Sources\n")
    defined = re.findall(r"^\[\^([\w-]+)\]:", sources, re.MULTILINE)
    assert len(defined) == len(set(defined)) == len(NOTES)
    assert set(keys(text)) == set(defined)


@pytest.mark.parametrize("key", sorted(key for key in NOTES if not key.startswith("us-")))
def test_a_source_can_be_found_again(key: str) -> None:
    """A page at one commit, or a package at one version; and when it was read."""
    note = NOTES[key]
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", note), f"{key}: no date"
    links = re.findall(r"\]\((https://[^)]+)\)", note)
    for link in links:
        assert re.search(r"/blob/[0-9a-f]{40}/|/pull/\d+$|/tags$", link), f"{key}: {link} may change under us"
    package = re.search(r"`[\w-]+==\d[\w.]*`", note)
    assert links or package or "`scripts/bench/install.py`" in note, (
        f"{key}: neither an address nor a package with its version"
    )


@pytest.mark.parametrize("key", sorted(key for key in NOTES if key.startswith("us-")))
def test_what_we_say_of_ourselves_names_what_is_there(key: str) -> None:
    note = NOTES[key]
    tests = re.findall(r"`([\w/.]+\.py)::(\w+)`", note)
    files = re.findall(r"`((?:scripts|benchmarks)/[\w./]+)`", note)
    pages = re.findall(r"\]\(([\w./-]+)\)", note)
    assert tests or files or pages, f"{key} names nothing"
    for file, name in tests:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name} is not there"
    for file in files:
        assert (ROOT / file).is_file(), file
    for page in pages:
        assert (ROOT / "docs/lab" / page).exists(), page


def test_the_sizes_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/install.json").read_text(encoding="utf-8"))
    said = "".join("|".join(row) for peers in PEERS for row in table(peers)[1] if row[0] == "**Install size**")
    for row in measured:
        assert f"{row['mb']:,.0f} MB" in said, row["what"]


def test_replies_during_swaps_are_those_of_the_benchmark() -> None:
    found = json.loads((ROOT / "benchmarks/swap.json").read_text(encoding="utf-8"))
    replies, failed = (sum(one[key] for one in found) for key in ("replies", "failed_count"))
    changes = sum(len(one["changes"]) for one in found)
    assert f"{replies} replies beside {changes} changes, {failed} failed" in PAGE


def test_the_latency_is_that_of_the_benchmark() -> None:
    found = json.loads((ROOT / "benchmarks/relay.json").read_text(encoding="utf-8"))["summary"]["plain-1k-1"]
    ours, bare, tensorzero, portkey, litellm = (
        f"{found[name]['added_p50_ms']:.1f}" for name in ("rlproxy", "bare", "tensorzero", "portkey", "litellm")
    )
    said = (
        f"median {ours} ms; in the same run a bare relay {bare}, TensorZero {tensorzero}, Portkey {portkey}, "
        f"LiteLLM {litellm} ms"
    )
    assert said in PAGE, said
