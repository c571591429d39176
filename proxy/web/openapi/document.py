"""The document, put together once from the table of routes.

Owns OpenAPI's own form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from proxy.web.openapi.shapes import Raw, Schema
from proxy.web.route import Route

TEMPLATE: Final = "#/components/schemas/{model}"
KEYS: Final[Schema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class _Untitled(GenerateJsonSchema):
    """A title that only says a member's name again helps nobody."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def document(operations: Sequence[Route]) -> dict[str, Any]:
    bodies = {(operation.id, place): body for operation in operations for place, body in _bodies(operation).items()}
    types: list[tuple[Any, Any, TypeAdapter[Any]]] = [
        (key, "validation", TypeAdapter(body)) for key, body in bodies.items() if not isinstance(body, Raw)
    ]
    schemas, shared_schemas = TypeAdapter.json_schemas(types, ref_template=TEMPLATE, schema_generator=_Untitled)
    content = {
        key: body.content if isinstance(body, Raw) else {"application/json": schemas[key, "validation"]}
        for key, body in bodies.items()
    }
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        operation_content = {place: _content(content[id, place]) for id, place in content if id == operation.id}
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, operation_content)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rlproxy",
            "version": version("rlproxy"),
            "description": "An OpenAI-compatible proxy that captures completions, takes ratings, and trains. Without "
            "keys it listens on loopback only, and whoever reaches it is its owner. With keys each operation needs one "
            "of at least the role in its `security`: use, rate or admin.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {"schemas": shared_schemas["$defs"], "securitySchemes": KEYS},
    }


def _bodies(operation: Route) -> dict[str, Any]:
    """By their place in an operation."""
    request_body = {} if operation.takes is None else {"body": operation.takes}
    return {
        **request_body,
        **{str(status): body for status, body in operation.answers.items()},
        "default": operation.fails,
    }


def _content(content: Mapping[str, Schema]) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema} for kind, schema in content.items()}}


def _operation(operation: Route, content: dict[str, Any]) -> dict[str, Any]:
    item: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.section],
        "summary": re.split(r"(?<=[.;:]) ", operation.says)[0].rstrip(".;:"),
        "description": operation.says,
        "parameters": _parameters(operation),
        "responses": {
            place: {"description": "What went wrong." if place == "default" else "What was asked for.", **body}
            for place, body in content.items()
            if place != "body"
        },
        "security": [] if operation.role is None else [{name: [operation.role]} for name in KEYS],
    }
    if "body" in content:
        item["requestBody"] = {"required": not operation.may_be_empty, **content["body"]}
    return item


def _parameters(operation: Route) -> list[dict[str, Any]]:
    parameters = [("path", name, operation.path_schema) for name in re.findall(r"\{(\w+)\}", operation.path)]
    parameters += [("query", name, schema) for name, schema in operation.query.items()]
    parameters += [("header", name, schema) for name, schema in operation.headers.items()]
    return [
        {"in": location, "name": name, "required": location == "path", "schema": schema}
        for location, name, schema in parameters
    ]
