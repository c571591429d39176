"""Count what makes prose hard to read, in the user docs, README.md, docstrings, and texts that the code says.

`python -m scripts.docs.prose` prints a table, `--json` the same as JSON, `--show FILE` each place in one file.
`--check` ends with 1 where a page or code has any, or the pages have more than `MOST_WORDS`; `scripts/lint` runs that.

| kind | what is counted |
|---|---|
| opening | docstrings that open with What, Who, Whether, Of, As, or That; on pages, sentences with the first four |
| is no | `is no JSON` instead of "is not JSON"; "there is no file" is right |
| long | sentences over 25 words; a list of code spans is one word; names of tests, SQL and columns are none |
| wide | lines over 100 columns of a paragraph that has several lines |

Code is that of config, store, trainer, proxy and scripts. An indented paragraph has commands and is left out. A text
with figures that a script in `FIGURES` writes into a page is a list: a semicolon in it ends a sentence.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("start", "guides", "reference", "explain")
PACKAGES: Final = ("config", "store", "trainer", "proxy", "scripts")
KINDS: Final = ("opening", "is no", "long", "wide")
FIGURES: Final = "scripts/docs/"
LONGEST, WIDEST = 25, 100
MOST_WORDS: Final = 35_000
_OPENING: Final = re.compile(r"(What|Who|Whether|Of|As|That)\b")
_ASKING: Final = re.compile(r"(What|Who|Whether|Of)\b(?!.*\?$)", re.DOTALL)
_IS_NO: Final = re.compile(r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|other\b|fewer\b)\w+")
_END: Final = re.compile(
    r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<=[.!?…])[\"”’)*_]*\s+(?=[\"“(*_]*(?:[A-Z`\d]|rlproxy\b))|\n\s*\n"
)
_SQL: Final = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE)\b")
_COLUMNS: Final = re.compile(r"[├└]──|^ +.*\S {2,}\S")
_ITEM: Final = re.compile(r"\A\s*(?:[-*+]|\d+\.|\[\^[\w-]+\]:) ")


class Finding(NamedTuple):
    file: str
    line: int
    kind: str
    text: str


def sentences(text: str) -> list[str]:
    return [sentence for sentence in (part.strip() for part in _END.split(text)) if sentence]


def words(sentence: str) -> int:
    return sum(any(char.isalnum() for char in word) for word in sentence.split())


def plain(markdown: str) -> str:
    """Without pictures, footnotes, and addresses; a list of code spans is one word, a test's name is none."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|\[\^[\w-]+\]|<!--.*?-->|<https?:[^>]*>", "", markdown, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", lambda span: "" if "::" in span[0] else "`x`", text)
    text = re.sub(r"`x`(?:(?:,|,? and|,? or) `x`)+", "`x`", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


def judged(file: str, line: int, text: str, opening: re.Pattern[str] | None) -> Iterator[Finding]:
    """Sentences of one paragraph."""
    for sentence in sentences(text):
        if opening is not None and opening.match(sentence):
            yield Finding(file, line, "opening", sentence)
        if _IS_NO.search(sentence):
            yield Finding(file, line, "is no", sentence)
        if words(sentence) > LONGEST:
            yield Finding(file, line, "long", sentence)


# Pages


def paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each with the number of its first line: no code, no headings, nothing that a script wrote; a cell is one."""
    for left_out in (r"(?ms)^( *)```.*?^\1```$", r"(?ms)^<!-- ([\w-]+) -->$.*?^<!-- /\1 -->$"):
        text = re.sub(left_out, lambda block: "\n" * block[0].count("\n"), text)
    first_number, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        table = line.lstrip().startswith("|")
        if lines and (not line.strip() or table or line.startswith("#") or _ITEM.match(line)):
            yield first_number, lines
            lines = []
        if table and not re.fullmatch(r"[\s|:-]+", line):
            yield from ((number, [cell]) for cell in re.sub(r"`[^`]*`", _barless, line).split("|") if cell.strip())
        elif line.strip() and not table and not line.startswith("#"):
            first_number = first_number if lines else number
            lines.append(line)


def _barless(span: re.Match[str]) -> str:
    return span[0].replace("|", "/")


def page(file: str, text: str) -> Iterator[Finding]:
    for number, lines in paragraphs(text):
        whole = plain(_ITEM.sub("", "\n".join(lines), count=1))
        yield from judged(file, number, whole, _ASKING)
        if len(lines) > 1:
            yield from (
                Finding(file, number + offset, "wide", line) for offset, line in enumerate(lines) if len(line) > WIDEST
            )


# Code


def code(file: str, text: str) -> Iterator[Finding]:
    """Docstrings, and texts that are sentences: a capital, a space, a full stop."""
    tree = ast.parse(text)
    docs = set[ast.expr]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            docstring := ast.get_docstring(node)
        ):
            expression = node.body[0]
            assert isinstance(expression, ast.Expr)
            docs.add(expression.value)
            if _OPENING.match(docstring):
                yield Finding(file, expression.lineno, "opening", sentences(docstring)[0])
            yield from (
                finding for lines in _spoken(docstring) for finding in judged(file, expression.lineno, lines, None)
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            docs.update(node.values)
            literal = "".join(str(value.value) if isinstance(value, ast.Constant) else "`x`" for value in node.values)
            if file.startswith(FIGURES):
                literal = literal.replace("; ", ".\n\n")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs:
            literal = node.value
        else:
            continue
        if re.match(r"[A-Z`{].* .*[.?!]$", literal, re.DOTALL):
            yield from (finding for lines in _spoken(literal) for finding in judged(file, node.lineno, lines, None))


def _spoken(text: str) -> Iterator[str]:
    """Its paragraphs, without lines in columns and trees, and without commands, which are indented."""
    text = "" if _SQL.match(text) else "\n".join("" if _COLUMNS.search(line) else line for line in text.splitlines())
    return (plain("\n".join(lines)) for _, lines in paragraphs(text) if not _is_indented(lines))


def _is_indented(lines: list[str]) -> bool:
    return not _ITEM.match(lines[0]) and all(line.startswith("    ") for line in lines)


def collect_findings() -> list[Finding]:
    findings = list(page("README.md", (ROOT / "README.md").read_text(encoding="utf-8")))
    for folder in FOLDERS:
        for file in sorted((ROOT / "docs" / folder).glob("*.md")):
            findings += page(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            findings += code(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    return findings


def length() -> int:
    """Words of README.md and all pages of docs/ but the lab's: prose, tables, code, and what scripts write there.

    A word is what stands between two spaces and has a letter or a digit. So a table's bars, list marks and arrows are
    none; a path, a number and a code span without a space are one each.
    """
    pages = [file for file in (ROOT / "docs").rglob("*.md") if (ROOT / "docs/lab") not in file.parents]
    return sum(words(file.read_text(encoding="utf-8")) for file in (ROOT / "README.md", *pages))


def main(arguments: list[str]) -> int:
    findings = collect_findings()
    if arguments[:1] == ["--show"]:
        for finding in findings:
            if finding.file in arguments[1:]:
                print(f"{finding.file}:{finding.line}: {finding.kind}: {' '.join(finding.text.split())}")
        return 0
    if arguments == ["--check"]:
        for finding in findings:
            print(f"{finding.file}:{finding.line}: {finding.kind}: {' '.join(finding.text.split())}", file=sys.stderr)
        if (long := length()) > MOST_WORDS:
            print(
                f"{long:,} words on the user pages, {MOST_WORDS:,} are allowed: move evidence to docs/lab",
                file=sys.stderr,
            )
        return bool(findings) or long > MOST_WORDS
    files = sorted({finding.file for finding in findings})
    table = {file: Counter(finding.kind for finding in findings if finding.file == file) for file in files}
    totals = {
        "pages": sum((n for file, n in table.items() if file.endswith(".md")), Counter[str]()),
        "code": sum((n for file, n in table.items() if file.endswith(".py")), Counter[str]()),
    }
    if arguments == ["--json"]:
        print(json.dumps({"words": length(), "totals": totals, "files": table}, indent=1))
        return 0
    print(f"{length():,} words on the user pages\n")
    for name, kinds in (*table.items(), *totals.items()):
        print(f"{name:60}", *(f"{kinds[kind]:5} {kind}" for kind in KINDS))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
