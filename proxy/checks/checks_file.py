"""A file of checks: the prompts to ask, and what must hold of each answer.

Owns the form of checks.toml and what is said of a wrong one. Not here: how a check is made (criteria), where captured
prompts come from (proxy.cli.checks.captured).
"""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from config.re2_patterns import TextPattern
from config.sections import OwnFunction

LARGEST_FILE: Final = 2**24  # bytes
MOST_PROMPTS: Final = 10_000


class ChecksError(Exception):
    """One sentence on a file of checks that cannot be used."""


class CheckSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f]+$")]


class CheckPrompt(CheckSection):
    """One prompt. `completion`: the captured completion that it is of, and `trained` whether that one trained."""

    name: Name
    text: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    tags: tuple[Name, ...] = ()
    language: str = ""
    completion: str | None = None
    trained: bool = False

    @model_validator(mode="after")
    def _is_asked(self) -> Self:
        if (self.text is None) == (not self.messages):
            raise ValueError(f"the prompt {self.name!r} needs either `text` or `messages`")
        return self

    @property
    def conversation(self) -> list[dict[str, Any]]:
        return list(self.messages) if self.text is None else [{"role": "user", "content": self.text}]


def _compiles(pattern: str) -> str:
    TextPattern(pattern)
    return pattern


class AnswerCheck(CheckSection):
    """Members of every kind. Without `prompts` and `tags` it is of all prompts."""

    name: Name
    prompts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    at_least: float = Field(default=1.0, ge=0, le=1)  # share of the prompts on which a candidate must pass

    def concerns(self, prompt: CheckPrompt) -> bool:
        if not self.prompts and not self.tags:
            return True
        return prompt.name in self.prompts or not set(self.tags).isdisjoint(prompt.tags)


class RegexCheck(AnswerCheck):
    kind: Literal["regex"]
    pattern: Annotated[str, AfterValidator(_compiles)]
    absent: bool = False  # the pattern must not be there


class LengthCheck(AnswerCheck):
    kind: Literal["length"]
    min_words: int = Field(default=0, ge=0)
    max_words: int | None = Field(default=None, ge=0)
    min_characters: int = Field(default=0, ge=0)
    max_characters: int | None = Field(default=None, ge=0)


class SchemaCheck(AnswerCheck):
    kind: Literal["schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class ToolCheck(AnswerCheck):
    """`calls`: the tool that must be called; empty: none may be. `arguments`: a JSON schema of its arguments."""

    kind: Literal["tool"]
    calls: str
    arguments: dict[str, Any] | None = None


class PythonCheck(AnswerCheck):
    """`function`: as `my.py:check`, called with the prompt and the answer."""

    kind: Literal["python"]
    function: Annotated[OwnFunction, Field(min_length=1)]
    timeout_s: float = Field(default=30.0, gt=0, le=3600)
    memory_mb: int = Field(default=1024, ge=64, le=1_000_000)


class JudgeCheck(AnswerCheck):
    """`criterion`: what the judge of the settings is asked about each answer."""

    kind: Literal["judge"]
    criterion: str = Field(min_length=1, max_length=2000)


AnyCheck = Annotated[
    RegexCheck | LengthCheck | SchemaCheck | ToolCheck | PythonCheck | JudgeCheck, Field(discriminator="kind")
]


class CapturedPrompts(CheckSection):
    """The newest captured prompts. Those that trained are left out unless they are asked for."""

    count: int = Field(ge=1, le=MOST_PROMPTS)
    trained: bool = False
    session: str | None = None
    user: str | None = None


class EvalEpisodes(CheckSection):
    """Success of each version in the episodes that never train."""

    split: Literal["eval"] = "eval"


class Suite(CheckSection):
    """A whole file. `folder` is where paths in it begin."""

    max_tokens: int = Field(default=256, ge=1, le=100_000)
    temperature: float = Field(default=0.0, ge=0, le=2)
    seed: int = 1
    prompt: tuple[CheckPrompt, ...] = ()
    check: tuple[AnyCheck, ...] = Field(min_length=1)
    captured: CapturedPrompts | None = None
    episodes: EvalEpisodes | None = None
    name: str = ""
    folder: Path = Path()
    digest: str = ""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for kind, rows in (("prompt", self.prompt), ("check", self.check)):
            for name, count in Counter(row.name for row in rows).items():
                if count > 1:
                    raise ValueError(f"two {kind}s are called {name!r}")
        if not self.prompt and self.captured is None and self.episodes is None:
            raise ValueError("there is nothing to ask: add [[prompt]], [captured] or [episodes]")
        known_names = {prompt.name for prompt in self.prompt}
        known_tags = {tag for prompt in self.prompt for tag in prompt.tags}
        for check in self.check:
            unknown = [*sorted(set(check.prompts) - known_names), *sorted(set(check.tags) - known_tags)]
            if unknown:
                raise ValueError(f"the check {check.name!r} is of {unknown[0]!r}, which no prompt has")
        return self

    def with_prompts(self, prompts: Sequence[CheckPrompt]) -> Suite:
        return self.model_copy(update={"prompt": (*self.prompt, *prompts)})


def read(file: Path) -> Suite:
    """Raises ChecksError."""
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ChecksError(
            f"{file} cannot be read ({error.strerror}); config/checks.example.toml is an example."
        ) from None
    if len(content) > LARGEST_FILE:
        raise ChecksError(f"{file} has more than {LARGEST_FILE // 2**20} MiB; split it.")
    try:
        members = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ChecksError(f"{file} is not TOML: {error}. Nothing was asked.") from None
    ours = {"name": file.name, "folder": file.absolute().parent, "digest": hashlib.sha256(content).hexdigest()}
    if reserved := sorted(ours.keys() & members.keys()):
        raise ChecksError(f"{file} has the key {reserved[0]!r}, which is not one of a file of checks.")
    try:
        return Suite.model_validate({**members, **ours})
    except ValidationError as error:
        raise ChecksError(f"{file} cannot be used: {_first(error)}. Nothing was asked.") from None


def _first(error: ValidationError) -> str:
    """The first fault, with its place."""
    fault = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
