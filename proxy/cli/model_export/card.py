"""The card beside an exported version: base, lineage, how many ratings, the gate, the base's licence.

Owns README.md in the form of Hugging Face's model cards. It has counts and figures, and nothing that anybody wrote or
asked. Not here: the files beside it (command).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from config.gate_checks import question
from proxy.core.version_names import label

LICENCE_BYTES: Final = 2**16  # of a card or a licence that are looked at
UNKNOWN_LICENCE: Final = "not stated in the folder of its weights: look it up before you share this"


class Licence(NamedTuple):
    """`id`: as Hugging Face names it, None where nothing does. `text`: for people."""

    id: str | None
    text: str


def licence_of(weights: Path | None) -> Licence:
    """Licence of the base: from the card in its folder, else the first line of its licence file."""
    if weights is None:
        return Licence(None, UNKNOWN_LICENCE)
    members = _front_members(_read(weights / "README.md"))
    if id := members.get("license"):
        parts = [members.get("license_name") or id, *([members["license_link"]] if "license_link" in members else [])]
        return Licence(id, f"{', '.join(parts)}, as its card says")
    for path in sorted(weights.glob("LICENSE*")):
        if line := next((line.strip() for line in _read(path).splitlines() if line.strip()), None):
            return Licence(None, f"{line[:200]} (first line of its file {path.name})")
    return Licence(None, UNKNOWN_LICENCE)


def _front_members(card: str) -> dict[str, str]:
    """The plain members that stand between the first two lines of a card that are `---`."""
    first, *lines = [line.rstrip() for line in card.splitlines()] or [""]
    if first != "---" or "---" not in lines:
        return {}
    pairs = (line.partition(":")[::2] for line in lines[: lines.index("---")] if line.startswith("license"))
    return {name: words[0].strip("\"'") for name, value in pairs if (words := value.partition("#")[0].split())}


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LICENCE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def lineage(version: int, adapters: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The version and those that it was trained from, newest first; the base is not among them."""
    by_version = {adapter["version"]: adapter for adapter in adapters}
    line = []
    while (adapter := by_version.get(version)) is not None and adapter not in line:
        line.append(adapter)
        version = adapter["parent"]
    return line


def card(
    line: Sequence[Mapping[str, Any]], manifests: Mapping[int, Mapping[str, Any]], licence: Licence, contents: str
) -> str:
    """`line`: as `lineage` gives it. `manifests`: those of its versions that are on this machine. `contents`: what
    lies beside the card."""
    newest = line[0]
    manifest = manifests[newest["version"]]
    return "\n".join([
        *_front(manifest, licence),
        f"# {newest['model']}, {label(newest['version'])}",
        "",
        contents,
        "",
        f"- Base: {_base(manifest) or Path(str(manifest.get('weights') or newest['model'])).name}",
        f"- Licence of the base: {licence.text}",
        f"- Trained by rlproxy from people's ratings, objective {manifest.get('objective') or 'unknown'}",
        *([f"- Rolled back by rlproxy: {newest['withdrawn']}"] if newest["withdrawn"] else []),
        "",
        "## Lineage",
        "",
        "| version | trained from | ratings | made |",
        "|---|---|---|---|",
        *(_row(adapter, manifests.get(adapter["version"])) for adapter in line),
        "",
        "## Gate",
        "",
        *_gate(newest["gate"] or {}),
        "",
    ])  # fmt: skip


def _front(manifest: Mapping[str, Any], licence: Licence) -> Iterator[str]:
    yield "---"
    if base := _base(manifest):
        yield f"base_model: {base}"
    if licence.id is not None:
        yield f"license: {licence.id}"
    yield from ("tags: [lora, rlproxy]", "---", "")


def _base(manifest: Mapping[str, Any]) -> str | None:
    """The hub's name of the base, where it has one: a folder of this machine tells nobody anything."""
    weights = str(manifest.get("weights") or "")
    return weights if re.fullmatch(r"[\w.-]+/[\w.-]+", weights) else None


def _row(adapter: Mapping[str, Any], manifest: Mapping[str, Any] | None) -> str:
    created = str((manifest or {}).get("created") or "?")[:10]
    return f"| {label(adapter['version'])} | {label(adapter['parent'])} | {_ratings(manifest)} | {created} |"


def _ratings(manifest: Mapping[str, Any] | None) -> str:
    """How many trained; and how many trained once more, in a run of an earlier release."""
    if manifest is None:
        return "?"
    replayed = manifest.get("replayed")
    return str(len(manifest.get("samples") or ())) + (f", and {len(replayed)} of earlier runs" if replayed else "")


def _gate(checks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if not checks:
        yield "No check is on record."
        return
    yield from ("| check | value | bound | passed | what it asks |", "|---|---|---|---|---|")
    for name, check in checks.items():
        value = "not taken" if check.get("value") is None else f"{check['value']:.4g}"
        passed = "yes" if check.get("ok") else "no"
        yield f"| {name} | {value} | {check.get('bound', ''):.4g} | {passed} | {question(name)} |"
