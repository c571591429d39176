"""Tell whether a JSON schema has any finite instance; one whose references require each other without end has none.

Owns that question for the keywords that can nest without end. Local references are followed, and what an instance need
not have is not looked at. Not here: what a schema means otherwise, which is the library's (constraints).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

MOST_STEPS: Final = 200_000  # subschemas looked at: some hundred milliseconds


class TooManyReferences(Exception):
    """The question takes too long to answer."""


def has_finite_instance(schema: Any) -> bool:
    """Raises TooManyReferences. References that lead nowhere count as finite: the library has a better reason."""
    return _Finiteness(schema).of_root()


class _Finiteness:
    """The least fixed point: a target of references is finite once it can be built of others that are."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._finite: dict[str, bool] = {"#": False}  # by reference, those met so far
        self._steps = 0

    def of_root(self) -> bool:
        while True:
            previous = dict(self._finite)
            for reference in previous:
                if not self._finite[reference]:
                    self._finite[reference] = self._is_finite(self._target(reference))
            if self._finite == previous:
                return self._finite["#"]

    def _is_finite(self, schema: Any) -> bool:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooManyReferences
        if not isinstance(schema, Mapping):
            return schema is not False
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#") and not self._finite.setdefault(reference, False):
            return False
        return self._is_finite_in_parts(schema) and self._has_finite_type(schema)

    def _is_finite_in_parts(self, schema: Mapping[str, Any]) -> bool:
        for keyword in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(keyword), list) and not any(map(self._is_finite, options)):
                return False
        parts = schema.get("allOf")
        return not isinstance(parts, list) or all(map(self._is_finite, parts))

    def _has_finite_type(self, schema: Mapping[str, Any]) -> bool:
        if "enum" in schema or "const" in schema:
            return True
        kinds = schema.get("type")
        kinds = {kinds} if isinstance(kinds, str) else set(map(str, kinds)) if isinstance(kinds, list) else None
        if kinds is None or kinds - {"object", "array"}:
            return True
        return ("object" in kinds and self._is_finite_object(schema)) or (
            "array" in kinds and self._is_finite_array(schema)
        )

    def _is_finite_object(self, schema: Mapping[str, Any]) -> bool:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            return True
        return all(self._is_finite(properties.get(name)) for name in required if isinstance(name, str))

    def _is_finite_array(self, schema: Mapping[str, Any]) -> bool:
        fewest, items = schema.get("minItems"), schema.get("items")
        if not isinstance(fewest, (int, float)) or fewest < 1:
            return True
        first = schema.get("prefixItems")
        first = first[: int(fewest)] if isinstance(first, list) else []
        return all(map(self._is_finite, first)) and (fewest <= len(first) or self._is_finite(items))

    def _target(self, reference: str) -> Any:
        """The part that a local reference names; None, which is finite, where it names nothing here."""
        place = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, Mapping):
                place = place.get(step)
            elif isinstance(place, list) and step.isdigit() and int(step) < len(place):
                place = place[int(step)]
            else:
                return None
        return place
