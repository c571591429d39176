"""How the messages of a request were written, as far as their stored form leaves it out.

The tree keeps a message's text joined and without the white space around it, and the arguments of calls sorted. So all
the ways in which clients send it back are one. A server reads it as it was sent: some make a message of each part, and
templates keep spaces and order. Owns these differences. Lengths, spaces and places tell nothing of what was said. The
reasoning of the turn that goes on is shown by templates, and dropped by clients later. They are kept with the
completion, and go with it. Not here: the canonical form itself (conversations), who reads them (run_folder).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from proxy.conversation.conversations import arguments_in
from proxy.core.agent_wrappers import ATTACHED, TEXT_PARTS
from proxy.core.json_edit import is_deeper
from proxy.dialects.chat_form import text_part

# Of one message: white space before, white space behind, the lengths of its parts or null, the order of the arguments
# of each call or null, its reasoning or null.
Form = list[Any]
AS_STORED: Final = ["", "", None, None]
DEEPEST: Final = 32  # levels of arguments; an order has two for each, and JSON is written to 254
_PLAIN: Final = {"role", "content", "name"}
THOUGHT: Final = ("reasoning_content", "reasoning")  # members; a server may know one of them only


def form_of(message: Mapping[str, Any]) -> Form | None:
    """The part that the stored form of this message leaves out; None where that is nothing."""
    content, lengths = message.get("content"), None
    if type(content) is str and message.keys() <= _PLAIN and content[:1].strip() and content[-1:].strip():
        return None  # as most
    if isinstance(content, list):
        texts = [str(p.get("text", "")) for p in content if isinstance(p, dict) and p.get("type") in TEXT_PARTS]
        kept_joined = len(texts) == len(content)
        lengths = [len(text) for text in texts] if kept_joined and not _is_marked(content) else None
        content = "".join(texts) if kept_joined else ""
    content = content if isinstance(content, str) else ""
    inner = content.strip()
    leading = content[: len(content) - len(content.lstrip())]
    trailing = content[len(leading) + len(inner) :]
    form = [leading, trailing, lengths, _orders(message.get("tool_calls")), _thought(message)]
    return None if form == [*AS_STORED, None] else form


def _is_marked(content: list[Any]) -> bool:
    """The only text of a message, with our mark: servers get it as a string (chat_form.without_marks)."""
    return len(content) == 1 and ATTACHED in content[0]


def _orders(calls: Any) -> list[Any] | None:
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    functions = [call.get("function") for call in calls]
    values = [arguments_in(f) if isinstance(f, Mapping) else None for f in functions]
    orders = [None if is_deeper(arguments, DEEPEST) else _order(arguments) for arguments in values]
    return orders if any(orders) else None


def _order(value: Any) -> Any:
    """The places of an object's members in their sorted order, and the same of what is in them; None: as sorted."""
    if not isinstance(value, dict | list):
        return None
    names = sorted(value) if isinstance(value, dict) else range(len(value))
    place_of = {name: place for place, name in enumerate(names)}
    order = [place_of[name] for name in value] if isinstance(value, dict) else list(names)
    inner = {str(place_of[name]): inner_order for name in names if (inner_order := _order(value[name])) is not None}
    return [order, inner] if inner or order != sorted(order) else None


def _thought(message: Mapping[str, Any]) -> dict[str, str] | None:
    if message.get("role") != "assistant":
        return None
    thoughts = {key: message.get(key) for key in THOUGHT}
    return {key: text for key, text in thoughts.items() if isinstance(text, str) and text and _is_text(text)} or None


def _is_text(text: str) -> bool:
    """Not half of a character, as JSON may have it: the store takes none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def forms_of(each: Sequence[Form | None], newest: int) -> dict[str, Form]:
    """Left-out parts of a whole prompt, by the places of its messages. `newest`: of the last message of a person;
    templates leave out the reasoning of turns before it."""
    forms: dict[str, Form] = {}
    for index, form in [(index, form) for index, form in enumerate(each) if form is not None]:
        visible = [*form[:-1], None] if index < newest else form
        if visible != [*AS_STORED, None]:
            forms[str(index)] = visible
    return forms


def as_sent(messages: Sequence[dict[str, Any]], forms: Mapping[str, Form] | None) -> list[dict[str, Any]]:
    """The messages in chat form as they were written; as they are stored, where no forms were kept of them."""
    return [_as_sent(message, (forms or {}).get(str(index))) for index, message in enumerate(messages)]


def _as_sent(message: dict[str, Any], form: Form | None) -> dict[str, Any]:
    if form is None:
        return message
    leading, trailing, lengths, orders, thought = form
    restored = {**message, **(thought or {})}
    if isinstance(content := message.get("content"), str):
        text = f"{leading}{content}{trailing}"
        restored["content"] = text if lengths is None else _cut(text, lengths)
    if orders:
        restored["tool_calls"] = [_reordered(call, o) for call, o in zip(message["tool_calls"], orders, strict=True)]
    return restored


def _cut(text: str, lengths: Sequence[int]) -> list[dict[str, Any]]:
    ends = list(accumulate(lengths))
    return [text_part(text[end - length : end]) for length, end in zip(lengths, ends, strict=True)]


def _reordered(call: dict[str, Any], order: Any) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _in_order(function["arguments"], order)}}


def _in_order(value: Any, order: Any) -> Any:
    if order is None:
        return value
    order_of_names, inner = order
    if isinstance(value, list):
        return [_in_order(item, inner.get(str(index))) for index, item in enumerate(value)]
    names = list(value)
    return {names[place]: _in_order(value[names[place]], inner.get(str(place))) for place in order_of_names}
