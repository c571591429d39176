"""Description of one route: its words, what it takes, what it answers.

Owns the form only. The routes are in `operations`, how they become a document in `document`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from proxy.access.roles import RULES
from proxy.core.errors import Problem
from store.records import Role

Schema = Mapping[str, Any]
Section = Literal["models", "ratings", "episodes", "chats", "control"]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "string", "enum": ["", "1", "true", "0", "false"]}  # alone it means true


def number(low: int, high: int, default: int | None = None) -> Schema:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return schema if default is None else {**schema, "default": default}


@dataclass(frozen=True, slots=True)
class Raw:
    """A body that is not JSON of rlproxy: its content types, each with a schema."""

    content: Mapping[str, Schema]


NDJSON: Final = Raw({"application/x-ndjson": TEXT})


@dataclass(frozen=True, slots=True)
class Operation:
    method: Literal["get", "post", "patch", "delete"]
    path: str
    section: Section
    says: str  # the row in docs/reference/http-api.md, and the description
    answers: Mapping[int, Any]  # by status: a type, `Raw`, or None for no body
    takes: Any = None  # a type, or `Raw`
    may_be_empty: bool = False  # no body is as good as {}
    query: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    path_schema: Schema = field(default_factory=lambda: TEXT)
    fails: Any = Problem  # the shape of everything that goes wrong
    details_page: str = ""  # a page that says more, seen from docs/reference/

    @property
    def id(self) -> str:
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.method, *words]).replace(".", "_")

    @property
    def role(self) -> Role | None:
        """The least that it needs; None: whoever asks."""
        rule = RULES[f"{self.method.upper()} {self.path}"]
        return None if rule.kind in ("open", "signed") else rule.least
