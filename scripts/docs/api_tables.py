"""Put the tables of routes into docs/reference/http-api.md, from the operations of /openapi.json. `--check` compares.

Each stands between `<!-- routes-SECTION -->` and `<!-- /routes-SECTION -->`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

from proxy.web.openapi.document import document
from proxy.web.route import Section
from proxy.web.route_table import OPERATIONS
from scripts.docs.filling import fill_place, settle

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/http-api.md"


def table(section: str) -> str:
    openapi = document(OPERATIONS)
    rows = [
        _row(
            openapi,
            operation.path,
            operation.method,
            operation.details_page,
            bodies=section not in ("models", "ratings"),
        )
        for operation in OPERATIONS
        if operation.section == section
    ]
    return "\n".join(["| route | role | |", "|---|---|---|", *rows])


def _row(openapi: dict[str, Any], path: str, method: str, details_page: str, *, bodies: bool) -> str:
    operation = openapi["paths"][path][method]
    roles = [role for scheme in operation["security"] for role in scheme.get("bearer", ())]
    words = [operation["description"]]
    if query := [
        f"`{_with_default(parameter)}`" for parameter in operation["parameters"] if parameter["in"] == "query"
    ]:
        words.append(f"Query: {', '.join(query)}.")
    if bodies and (members := _members(openapi, operation.get("requestBody", {}))):
        words.append(f"Body: {', '.join(members)}.")
    if details_page:
        words.append(f"[{details_page.partition('#')[0].rpartition('/')[2]}]({details_page})")
    return f"| `{method.upper()} {path}` | {roles[0] if roles else '–'} | {' '.join(words)} |"


def _with_default(parameter: dict[str, Any]) -> str:
    default = parameter["schema"].get("default")
    return parameter["name"] if default is None else f"{parameter['name']}={default}"


def _members(openapi: dict[str, Any], body: dict[str, Any]) -> list[str]:
    """List the members of a body that is one object; those that may be missing have a question mark."""
    reference = body.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
    schema = openapi["components"]["schemas"].get(reference.rpartition("/")[2], {})
    return [f"`{name}`" + ("" if name in schema.get("required", ()) else "?") for name in schema.get("properties", ())]


def filled(page: str) -> str:
    for section in get_args(Section):
        page = fill_place(page, f"routes-{section}", table(section))
    return page


def main() -> int:
    return settle({PAGE: filled(PAGE.read_text(encoding="utf-8"))})


if __name__ == "__main__":
    sys.exit(main())
