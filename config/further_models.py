"""The tables `[models.NAME]`: models of other servers, beside the home's own.

Owns their keys and which names they may have. What is done with their answers belongs to `proxy`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import StringConstraints, model_validator

from config.backend_kinds import usual_url
from config.sections import Key, Section, Url

TABLE: Final = "models"
FurtherKind = Literal["vllm", "sglang", "llamacpp", "ollama", "lmstudio", "mlx", "openai"]
ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,79}$")]  # as variables can have it


class FurtherModel(Section):
    url: Url = ""
    """Its server's address; may be empty as `backend.url`."""
    kind: FurtherKind = "openai"
    """Its server; "openai" is any other."""
    model: str = ""
    """The server's name for it; empty takes its only one."""
    api_key: Key = None
    """Key that it wants; a client's own never goes there."""

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if not self.address:
            raise ValueError("it needs an address: `url`")
        return self

    @property
    def address(self) -> str:
        return self.url or usual_url(self.kind)


FurtherModels = dict[ModelName, FurtherModel]
