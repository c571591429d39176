"""A request of a platform, and what rlproxy must make of it. It runs in an environment of its own, with the makers'
packages and nothing of rlproxy's."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Step:
    """`values`: the person's ratings after it, of the linked message and of the channel's newest."""

    name: str
    body: bytes
    headers: dict[str, str]
    values: tuple[float | None, float | None]
    status: int = 200
    kind: str = ""  # what the answer is: see each platform's `read`
    gateway: str = ""  # Discord: an event of its Gateway, with this name

    def line(self) -> str:
        return json.dumps({**self.__dict__, "body": base64.b64encode(self.body).decode()})


@dataclass
class Script:
    """Steps one after the other; each starts from the ratings that the last one left."""

    steps: list[Step] = field(default_factory=list)
    values: tuple[float | None, float | None] = (None, None)

    def add(
        self,
        name: str,
        request: tuple[dict[str, str], bytes],
        linked: float | str | None = "same",
        newest: float | str | None = "same",
        **more: Any,
    ) -> None:
        old_linked, old_newest = self.values
        self.values = (
            old_linked if linked == "same" else linked,  # type: ignore[assignment]
            old_newest if newest == "same" else newest,  # type: ignore[assignment]
        )
        self.steps.append(Step(name, request[1], request[0], self.values, **more))

    def write(self) -> None:
        for step in self.steps:
            print(step.line())


def read_input() -> dict[str, Any]:
    given: dict[str, Any] = json.load(sys.stdin)
    return given
