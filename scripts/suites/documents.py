"""Shapes against the published documents: OpenAI's OpenAPI and Open Responses'.

Owns which schema of a document belongs to which shape, and the exceptions. It runs in the suites' own environment,
which has jsonschema: `python documents.py SHAPES OPENAI OPENRESPONSES`, where SHAPES has a line of JSON for each shape.
The documents are fetched where they can be had (install); this repository does not have them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

OPENAI: Final[Mapping[str, str]] = {
    "chat": "CreateChatCompletionResponse",
    "chat chunk": "CreateChatCompletionStreamResponse",
    "completion": "CreateCompletionResponse",
    "completion chunk": "CreateCompletionResponse",
    "response": "Response",
    "response event": "ResponseStreamEvent",
    "response items": "ResponseItemList",
    "compaction": "CompactResource",
    "openai models": "ListModelsResponse",
    "openai model": "Model",
    "openai error": "ErrorResponse",
}
OPEN_RESPONSES: Final[Mapping[str, str]] = {"response": "ResponseResource", "compaction": "CompactResource"}
_NULL: Final = "OpenAI's own examples have null"
# (document, shape, the end of the place): why the document is not followed there. OpenAI's own examples count.
EXCEPTIONS: Final[Mapping[tuple[str, str, str], str]] = {
    ("openai", "chat chunk", "choices.logprobs"): _NULL,
    ("openai", "chat chunk", "choices.finish_reason"): _NULL,
    (
        "openai",
        "completion chunk",
        "choices.finish_reason",
    ): "one schema for whole and streamed; it is null until the end",
    ("openai", "completion chunk", "usage"): "one schema for whole and streamed; the document's text says null",
    ("openai", "response", "user"): _NULL,
    ("openai", "response event", "response.user"): _NULL,
    ("openai", "response event", "response.usage"): _NULL,
    ("openai", "response", "text.format.description"): "Open Responses requires it, null where there is none",
    ("openai", "response event", "text.format.description"): "Open Responses requires it, null where there is none",
    ("open responses", "response", "text.format.schema"): "its schema takes null alone; OpenAI's takes the schema",
    (
        "open responses",
        "response event",
        "text.format.schema",
    ): "its schema takes null alone; OpenAI's takes the schema",
}


class Document:
    def __init__(self, name: str, path: Path, shapes: Mapping[str, str]) -> None:
        import jsonschema
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT202012

        self.name, self._shapes = name, shapes
        document = json.loads(path.read_text())
        self.version = document["info"]["version"]
        registry: Any = Registry().with_resource("urn:d", Resource.from_contents(document, DRAFT202012))
        self._schemas = document["components"]["schemas"]
        self._events = _events(self._schemas)
        self._make: Callable[..., Any] = jsonschema.Draft202012Validator
        self._registry = registry

    def faults(self, kind: str, body: Any) -> Iterator[str]:
        schema = self._events.get(str(body.get("type"))) if kind == "response event" else self._shapes.get(kind)
        if schema is None:
            return
        validator = self._make({"$ref": f"urn:d#/components/schemas/{schema}"}, registry=self._registry)
        for error in validator.iter_errors(body):
            for place, message in _leaves(error):
                if not any((self.name, kind, end) in EXCEPTIONS for end in _ends(place)):
                    yield f"{place}: {message[:160]}"

    def knows(self, kind: str) -> bool:
        return kind in self._shapes or (kind == "response event" and bool(self._events))


def _events(schemas: Mapping[str, Any]) -> dict[str, str]:
    """The schemas of events by the one type that each has."""
    events: dict[str, str] = {}
    for name, schema in schemas.items():
        kinds = (schema.get("properties", {}).get("type") or {}).get("enum") or []
        is_event = name.endswith(("Event", "StreamingEvent")) and not name.startswith(("Realtime", "Beta", "WebSocket"))
        if is_event and len(kinds) == 1 and (str(kinds[0]).startswith("response.") or kinds[0] == "error"):
            events.setdefault(kinds[0], name)
    return events


def _ends(place: str) -> Iterator[str]:
    parts = place.split(".")
    return (".".join(parts[index:]) for index in range(len(parts)))


def _leaves(error: Any) -> Iterator[tuple[str, str]]:
    """The faults that matter: of a union, those of the branch that comes nearest."""
    if not error.context:
        place = ".".join(str(part) for part in error.absolute_path if not isinstance(part, int))
        yield place or "(all)", error.message
        return
    branches: dict[Any, list[Any]] = {}
    for child in error.context:
        branches.setdefault(child.schema_path[0], []).append(child)
    nearest = min(branches.values(), key=_distance)
    for child in nearest:
        yield from _leaves(child)


def _distance(children: list[Any]) -> tuple[bool, int]:
    """Branches of another type are farthest."""
    is_other = any(child.validator in ("enum", "const") and "type" in child.path for child in children)
    return is_other or any(child.validator == "type" and not child.path for child in children), len(children)


def main() -> int:
    shapes = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    report: dict[str, Any] = {}
    for name, path, kinds in (("openai", sys.argv[2], OPENAI), ("open responses", sys.argv[3], OPEN_RESPONSES)):
        if not Path(path).is_file():
            report[name] = {"skipped": "the document could not be had"}
            continue
        document, checked, faults = Document(name, Path(path), kinds), Counter[str](), Counter[str]()
        for shape in shapes:
            # Open Responses has functions alone, and OpenAI's document has custom tools.
            if not document.knows(shape["kind"]) or (name != "openai" and "custom" in shape["case"]):
                continue
            checked[shape["dialect"]] += 1
            faults.update({f"{shape['kind']}: {fault}" for fault in document.faults(shape["kind"], shape["body"])})
        report[name] = {"version": document.version, "checked": dict(checked), "faults": dict(faults)}
    print(json.dumps(report, indent=1))
    return int(any(entry.get("faults") for entry in report.values()))


if __name__ == "__main__":
    sys.exit(main())
