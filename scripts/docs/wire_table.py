"""The table of docs/lab/wire.md: how many cases the wire corpus has, by kind and by dialect.

python -m scripts.docs.wire_table            put it into the page; `--check` only compares
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

from scripts.docs.filling import fill_place, settle
from scripts.golden.wire import WireCase, cases

NAME: Final = "wire"
PAGE: Final = Path(__file__).resolve().parents[2] / "docs/lab/wire.md"
DIALECTS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
}
COLUMNS: Final = (*dict.fromkeys(DIALECTS.values()), "other")


def dialect_of(case: WireCase) -> str:
    """The dialect of the case's first request to a captured route; `other` where it has none."""
    paths = (request.path.partition("?")[0] for request in case.requests)
    return next((DIALECTS[path] for path in paths if path in DIALECTS), "other")


def table(corpus: list[WireCase]) -> str:
    """A row for each kind, the largest first, and a last row with the sums."""
    counts = Counter((case.kind, dialect_of(case)) for case in corpus)
    totals = Counter(case.kind for case in corpus)
    rows = [(kind, [counts[kind, dialect] for dialect in COLUMNS], total) for kind, total in totals.items()]
    rows.sort(key=lambda row: (-row[2], row[0]))
    rows.append(("**all**", [sum(counts[kind, dialect] for kind in totals) for dialect in COLUMNS], len(corpus)))
    lines = [f"| kind | {' | '.join(COLUMNS)} | cases |", "|---" * (len(COLUMNS) + 2) + "|"]
    lines += [
        f"| {kind} | {' | '.join(str(count or '') for count in by_dialect)} | {total} |"
        for kind, by_dialect, total in rows
    ]
    return "\n".join(lines)


def filled(text: str) -> str:
    return fill_place(text, NAME, table(cases()))


def main() -> int:
    return settle({PAGE: filled(PAGE.read_text(encoding="utf-8"))})


if __name__ == "__main__":
    sys.exit(main())
