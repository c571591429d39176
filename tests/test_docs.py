"""The documentation is true: every route, command and module is in it, and what it names exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import typer.main

from config.sections import BackendSection
from config.settings import load
from proxy.cli.app import app as cli
from scripts.docs import api_tables, settings_table
from scripts.docs.tables import PAGES, filled
from scripts.harness.in_process import Proxy

ROOT = Path(__file__).resolve().parents[1]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


async def test_every_route_is_documented(proxy: Proxy) -> None:
    page = read("docs/reference/http-api.md") + read("docs/lab/http-api.md")  # the page's own routes
    for route in proxy.app.router.routes():
        path = route.resource.canonical if route.resource else ""
        if route.method == "HEAD" or path.startswith("/s/") or path.endswith("{rest}"):
            continue
        assert f"{route.method} {path}" in page, f"{route.method} {path} is not in docs/reference/http-api.md"


def test_every_command_is_documented() -> None:
    page = read("docs/reference/commands.md")
    for name in typer.main.get_command(cli).commands:  # type: ignore[attr-defined]
        assert f"rlproxy {name}" in page, f"`rlproxy {name}` is not in docs/reference/commands.md"


def test_each_package_has_a_readme_that_names_its_modules() -> None:
    for room in ("config", "store", "trainer", "proxy", "scripts"):
        for init in (ROOT / room).rglob("__init__.py"):
            readme = (init.parent / "README.md").read_text(encoding="utf-8").split("```")[1]
            named = re.findall(r"[\w*]+\.py", readme)
            for module in init.parent.glob("*.py"):
                assert module == init or any(module.match(name) for name in named), f"{module} is not in its README"
            for name in named:
                assert list(init.parent.glob(name)), f"{init.parent}/README.md names {name}, which is not there"
            for package in init.parent.glob("*/__init__.py"):
                assert f"{package.parent.name}/" in readme, f"{package.parent} is not in {init.parent}/README.md"


def test_every_backend_has_a_row_and_says_how_it_was_tested() -> None:
    table = read("docs/reference/backends.md").split("|---|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    rows = [line.split("|") for line in table.splitlines()]
    kinds = get_args(BackendSection.model_fields["kind"].annotation)
    assert {re.findall(r"`(\w+)`", row[1])[0] for row in rows} == set(kinds)
    assert all(re.search(r"real one|a fake", row[4]) for row in rows)


def test_tables_are_those_of_the_benchmarks() -> None:
    for page in PAGES:
        assert filled(read(page)) == read(page), f"{page}: run scripts/docs/tables.py"


def test_the_tables_of_routes_are_those_of_the_openapi_document() -> None:
    page = read("docs/reference/http-api.md")
    assert api_tables.filled(page) == page, "run scripts/docs/api_tables.py"


def test_the_tables_of_settings_are_those_of_the_classes() -> None:
    page = read("docs/reference/settings.md")
    assert settings_table.filled(page) == page, "run scripts/docs/settings_table.py"


def test_the_names_for_the_environment_are_read_from_it() -> None:
    page = read("docs/reference/settings.md")
    assert "`RLPROXY_SECTION__NAME`" in page
    keys = re.findall(rf"^\| `((?:home|{'|'.join(settings_table.sections())})(?:\.\w+)?)` \|", page, re.MULTILINE)
    everywhere = re.findall(r"`webhooks\.PLATFORM\.(\w+)`", page)
    keys += [key for key in settings_table.fields() if re.fullmatch(rf"webhooks\.\w+\.({'|'.join(everywhere)})", key)]
    rows = [(key, f"RLPROXY_{key.upper().replace('.', '__')}") for key in keys]
    assert len(rows) > 100
    given = {"server.port": "9000", "train.hours": '["22:00-07:00"]', "train.raters": '{"ann": 2}'}
    loaded = load(environ={variable: given[key] for key, variable in rows if key in given})
    assert {key for key, source in loaded.sources.items() if source != "default"} == set(given)
    assert {key for key, _ in rows} == set(loaded.sources), "a setting is not on the page, or one is that is none"


def test_links_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_files_named_in_the_readme_exist() -> None:
    for path in re.findall(r"`((?:scripts|docs|benchmarks|config|tests)/[\w./-]+)`", read("README.md")):
        assert (ROOT / path).exists(), path


def test_the_table_of_clients_is_true() -> None:
    """Each cell names tests that there are, or says why not; and each test of a client is in it."""
    page = read("docs/lab/agents.md")
    lines = page[page.index("| client | dialect |") :].split("\n\n")[0].splitlines()
    named: set[str] = set()
    for line in lines[2:]:
        _, client, dialect, *cells, _ = (cell.strip() for cell in line.split("|"))
        assert len(cells) == 4 and client and dialect, line
        for cell in cells:
            tests = re.findall(r"`([\w/.]+::\w+)`", cell)
            assert tests or re.match(r"– \w+", cell), f"{client}, {dialect}: {cell!r} names no test and no reason"
            named.update(tests)
    there = {
        f"{file.relative_to(ROOT / 'tests')}::{name}"
        for file in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named <= there, f"docs/lab/agents.md names tests that are not there: {named - there}"
    missing = {test for test in there if test.startswith("clients/")} - named
    assert not missing, f"docs/lab/agents.md does not name {missing}"
    for package, version in json.loads(read("tests/clients/package.json"))["dependencies"].items():
        assert version in page, f"docs/lab/agents.md does not name {package} {version}"


@pytest.mark.parametrize(
    ("page", "head"),
    [
        ("docs/lab/backends.md", "| fault | what happened | test |"),
        ("docs/lab/reliability.md", "| fault | what the client saw | what was stored | what came after | tests |"),
        ("docs/lab/reliability.md", "| what | how | tests |"),
        ("docs/lab/errors.md", "| what it says (beginning) | test |"),
    ],
)
def test_the_tables_of_faults_are_true(page: str, head: str) -> None:
    """Each row names tests that there are."""
    text = read(page)
    rows = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    assert rows
    for row in rows:
        tests = re.findall(r"`([\w/.]+)::(\w+)`", row)
        assert tests, row
        for file, name in tests:
            assert f"def {name}(" in read(f"tests/{file}"), f"{file}::{name} is not there"


def test_the_threat_model_is_true() -> None:
    """Each threat names tests that there are, and each test of the attacker's stands for a threat."""
    page = read("docs/lab/threats.md")
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    rows = [row for row in rows if not row.startswith("| who | wants")]
    named: set[str] = set()
    for row in rows:
        tests = re.findall(r"`([\w/.]+)::(\w+)`", row)
        assert tests, row
        for file, name in tests:
            assert f"def {name}(" in read(f"tests/{file}"), f"{file}::{name} is not there"
            named.add(name)
    attacks = set(re.findall(r"^async def (test_\w+)", read("tests/attacker/test_attacker.py"), re.MULTILINE))
    assert attacks <= named, f"docs/lab/threats.md does not name {attacks - named}"
    files = {file.name for file in (ROOT / "tests" / "attacker").glob("test_*.py")}
    assert files <= {name.rpartition("/")[2] for name in re.findall(r"attacker/test_\w+\.py", page)}


def test_what_quick_runs_is_there() -> None:
    """pytest runs nothing at all where one of its paths is gone."""
    paths = re.findall(r"tests/[\w/.]+", (ROOT / "scripts/quick").read_text())
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []
