"""The form that a request wants of its reply: JSON, JSON by a schema, or a call of a tool.

Owns which grammar that is. A call is written as the chat template writes one, and read again while it is being
generated. Not here: compilation (constraints), the other members of a request (chat_wire).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainer.serve.constraints import Grammar, SchemaPart

OPENING, CLOSING = "<tool_call>", "</tool_call>"  # of Hermes, Qwen, SmolLM2 and others
NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
# Members by which an object may have properties that `properties` does not name.
OPEN: Final = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "if", "$ref",
     "dependentSchemas"}
)  # fmt: skip
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
HEAD: Final = re.compile(r'\s*\{"name": "([^"]+)", "arguments": ')


class FormError(Exception):
    """A form that is not one; one sentence, and the request's member at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message, self.param = message, param


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """`options`: the grammars of which a reply follows one; `places`: the member that each came from."""

    options: Sequence[Grammar]
    places: Sequence[str]
    call_finish: str | None = None  # the reply is a call, and this is why it ends


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes a call: what stands around its JSON, as grammar and as text."""

    opening: Grammar = ()
    closing: Grammar = ()
    opening_text: str = ""
    closing_text: str = ""


def call_form(tokenizer: Any) -> CallForm:
    """The form that the chat template shows; plain JSON where it shows none."""
    if OPENING not in str(tokenizer.chat_template):
        return CallForm()
    added, hidden = tokenizer.get_added_vocab(), set(tokenizer.all_special_tokens)

    def part(tag: str) -> str | int:
        token: str | int = added.get(tag, tag)
        return token

    def text(tag: str) -> str:
        return "" if tag in hidden else tag

    return CallForm((part(OPENING), "\n"), ("\n", part(CLOSING)), f"{text(OPENING)}\n", f"\n{text(CLOSING)}")


def reply_form(
    tool_choice: Any, tools: Sequence[Mapping[str, Any]] | None, response_format: Any, calls: CallForm
) -> ReplyForm | None:
    """None where any text will do. Raises FormError."""
    if tool_choice not in (None, "auto", "none"):
        return _call(tool_choice, tools or (), calls)
    if response_format is None or response_format.get("type") == "text":
        return None
    if response_format.get("type") == "json_object":
        return ReplyForm([[SchemaPart({"type": "object"})]], ["response_format"])
    if response_format.get("type") != "json_schema":
        raise FormError("the type is neither text, json_object nor json_schema", "response_format.type")
    member = response_format.get("json_schema")
    place = "response_format.json_schema"
    if not isinstance(member, Mapping):
        raise FormError("an object is required", place)
    schema = member.get("schema", {"type": "object"})
    if not isinstance(schema, Mapping):
        raise FormError("a schema is an object", f"{place}.schema")
    return ReplyForm([[SchemaPart(schema)]], [f"{place}.schema"])


def _call(tool_choice: Any, tools: Sequence[Mapping[str, Any]], calls: CallForm) -> ReplyForm:
    functions = [(n, tool["function"]) for n, tool in enumerate(tools) if isinstance(tool.get("function"), Mapping)]
    finish = "tool_calls"
    if isinstance(tool_choice, Mapping):
        name = (tool_choice.get("function") or {}).get("name") if tool_choice.get("type") == "function" else None
        if not isinstance(name, str):
            raise FormError('"auto", "none", "required" or a function by its name is required', "tool_choice")
        functions = [(n, function) for n, function in functions if function.get("name") == name]
        finish = "stop"  # OpenAI's word where the tool was named
        if not functions:
            raise FormError(f"tools has no function {name[:64]!r}", "tool_choice")
    elif tool_choice != "required":
        raise FormError('"auto", "none", "required" or a function by its name is required', "tool_choice")
    elif not functions:
        raise FormError("a call is required and tools has no function", "tool_choice")
    options: list[Grammar] = []
    for n, function in functions:
        name, parameters = function.get("name"), function.get("parameters") or NO_ARGUMENTS
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise FormError("a name of letters, digits, - and _ is required", f"tools.{n}.function.name")
        if not isinstance(parameters, Mapping):
            raise FormError("a schema is an object", f"tools.{n}.function.parameters")
        head = f'{{"name": "{name}", "arguments": '
        options.append([*calls.opening, head, SchemaPart(closed(parameters)), "}", *calls.closing])
    return ReplyForm(options, [f"tools.{n}.function.parameters" for n, _ in functions], finish)


def closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's parameters without arguments that it does not name, unless it says that it takes others. A small model
    writes the schema's own words there."""
    if "properties" not in parameters or not OPEN.isdisjoint(parameters):
        return parameters
    return {**parameters, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The next part of a call: its name, once, and letters of its arguments."""

    name: str | None
    arguments: str


class CallReader:
    """Reads the one call of a reply as it comes."""

    def __init__(self, form: CallForm) -> None:
        self._opening, self._closing = form.opening_text, "}" + form.closing_text
        self._pending = ""
        self._has_name = False

    def push(self, text: str, *, last: bool) -> CallPiece | None:
        """None while nothing is certain. What may be the end of the call waits for the next piece."""
        self._pending += text
        name = None
        if not self._has_name:
            head = HEAD.match(self._pending.removeprefix(self._opening))
            if head is None:
                return None
            self._has_name, name = True, head[1]
            self._pending = self._pending.removeprefix(self._opening)[head.end() :]
        count = len(self._pending) - (0 if last else len(self._closing))
        arguments, self._pending = self._pending[: max(count, 0)], self._pending[max(count, 0) :]
        if last:
            arguments = arguments.removesuffix(self._closing)
        return CallPiece(name, arguments) if name or arguments else None
