"""The forms in which a body, a query or a header is described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

Schema = Mapping[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "string", "enum": ["", "1", "true", "0", "false"]}  # alone it means true


def number(low: int, high: int, default: int | None = None) -> Schema:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return schema if default is None else {**schema, "default": default}


class RequestShape(BaseModel):
    """A JSON object; built once somebody asks for the document, not at each start."""

    model_config = ConfigDict(defer_build=True)


@dataclass(frozen=True, slots=True)
class Raw:
    """A body that is not JSON of rlproxy: its content types, each with a schema."""

    content: Mapping[str, Schema]


NDJSON: Final = Raw({"application/x-ndjson": TEXT})
