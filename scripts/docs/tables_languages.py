"""The tables of docs/lab/languages.md: detection, ordinary text, gates by language, refusals.

Owns their rows. Not here: putting them into the page (tables), the measurement (scripts.research.language_gates).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from config.languages import CODES, language

MISSING = "Not measured yet."
CHECKS = ("base_nll", "text_nll", "topic", "repetition", "entropy")


def languages(report: Mapping[str, Any]) -> str:
    """Each language: prompts told right, and how the base finds its text."""
    detect, texts = report["detect"]["measured"], report["texts"]["measured"]
    lines = [
        "| language | prompts told right | of draws of 8 | tokens of the text | nats a token | loops |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for code in CODES:
        detected, text = detect[code], texts[code]
        draws = f"{detected['of_10_draws_of_8']} of 10"
        lines.append(
            f"| {language(code).name} | {detected['right']} of {detected['prompts']} | {draws} "
            f"| {text['tokens']} | {text['nats_a_token']:.2f} | {text['loops']} of {text['windows']} |"
        )
    right, prompts = (sum(detect[code][name] for code in CODES) for name in ("right", "prompts"))
    return "\n".join([*lines, "", f"{right} of {prompts} prompts by themselves. {_circumstances(report['texts'])}"])


def gates(report: Mapping[str, Any]) -> str:
    """Each candidate and gate: what stopped it."""
    lines = [
        f"| candidate | gate | {' | '.join(f'`{name}`' for name in CHECKS)} | stopped by |",
        "|---" * (len(CHECKS) + 3) + "|",
    ]
    lines += [
        f"| {about} | {_names(codes)} | {' | '.join(_value(checks, name) for name in CHECKS)} "
        f"| {', '.join(f'`{name}`' for name in stopped) or 'nothing'} |"
        for about, codes, checks, stopped in _judged(report)
    ]
    measured = [part for name, part in report.items() if name.startswith(("spoilt_", "good_"))]
    return "\n".join([*lines, "", _circumstances(measured[-1])]) if measured else MISSING


def _judged(report: Mapping[str, Any]) -> Iterator[tuple[str, list[str], Mapping[str, Any], list[str]]]:
    for code in ("de", "es"):
        if f"good_{code}" not in report:
            continue
        row = report[f"good_{code}"]["measured"]
        stopped = [name for name, check in row["gate"].items() if not check["ok"]]
        yield f"rated in {language(code).name}", [code], row["gate"], stopped
        if "in_english" in row:
            english = row["in_english"]
            yield "the same", english["gate"], english["checks"], english["stopped_by"]
    for code in ("en", "de", "es"):
        for row in report.get(f"spoilt_{code}", {}).get("measured", ()):
            about = f"spoilt in {language(code).name}, {row['steps']} steps"
            yield about, row["gate"], row["checks"], row["stopped_by"]


def _value(checks: Mapping[str, Any], name: str) -> str:
    """A check's value, and its bound where it is past it."""
    check = checks.get(name) or {}
    value, bound = check.get("value"), check.get("bound")
    return "0" if value is None else f"{value:+.2f} ({bound:+.2f})"


def refused(report: Mapping[str, Any]) -> str:
    """Each language: refusals that count, and answers that count by mistake."""
    if (part := report.get("refusals")) is None:
        return MISSING
    lines = [
        "| language | answers to what ought to be refused that count | answers to the gate's questions that count |",
        "|---|---:|---:|",
    ]
    for code in CODES:
        row = part["measured"][code]
        refusals = sum(reply["counted"] for reply in row["forbidden"])
        lines.append(
            f"| {language(code).name} | {refusals} of {len(row['forbidden'])} "
            f"| {len(row['questions_counted_as_refused'])} of 8 |"
        )
    return "\n".join([*lines, "", _circumstances(part)])


def headers(report: Mapping[str, Any]) -> str:
    """Each language: what a comment brings under either header, nats a token."""
    part = report["headers"]
    lines = ["| language | replies | English header | own header | own less English |", "|---|---:|---:|---:|---:|"]
    for code, row in part["measured"].items():
        gap = f"{row['own_minus_English']:+.3f} ± {row['standard_error']:.3f}"
        gains = f"{row['gain_English']:+.3f} | {row['gain_own']:+.3f}"
        lines.append(f"| {language(code).name} | {row['replies']} | {gains} | {gap} |")
    return "\n".join([*lines, "", _circumstances(part)])


def _names(codes: list[str]) -> str:
    return " and ".join(language(code).name for code in codes)


def _circumstances(part: Mapping[str, Any]) -> str:
    machine = part["machine"]
    return (
        f"{part['date'][:10]}, {part['model']} in {part['compute']}, {machine['cpu']}, {machine['cores']} cores, "
        f"load {machine['load_before']:.0f}, commit `{part['commit']}`."
    )
