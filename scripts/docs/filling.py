"""Fill committed files with what scripts make of the code and of measurements: tables in pages, pictures.

Owns the places, `<!-- NAME -->` to `<!-- /NAME -->`, and that `--check` compares and writes nothing. Not here: what is
put there (tables, api_tables, settings_table, plot_learning).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path


def fill_place(page: str, name: str, text: str) -> str:
    """The page with this text in the place of that name. Raises SystemExit where it has none."""
    head, start, remainder = page.partition(f"<!-- {name} -->\n")
    _, end, tail = remainder.partition(f"<!-- /{name} -->")
    if not start or not end:
        raise SystemExit(f"There is no place for {name}.")
    return f"{head}{start}{text}\n{end}{tail}"


def has(page: str, name: str) -> bool:
    return re.search(rf"<!-- {re.escape(name)} -->\n", page) is not None


def settle(files: Mapping[Path, str]) -> int:
    """Write those that differ from what is there, or with `--check` only say which; the exit code."""
    check = "--check" in sys.argv
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in [] if check else stale:
        path.write_text(files[path], encoding="utf-8")
    print(f"{'stale' if check else 'written'}: {', '.join(path.name for path in stale) or 'nothing'}")
    return 1 if stale and check else 0
