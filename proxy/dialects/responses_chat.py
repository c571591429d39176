"""A Responses request as chat completions.

Owns which member becomes which, and what cannot be said there. The table is in docs/lab/dialects.md. What only changes
how OpenAI serves (caching, tiers, storing) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.core.errors import BadRequest, UnknownPrevious
from proxy.dialects.chat_form import without_marks
from proxy.dialects.chat_turns import in_turns
from proxy.dialects.responses_tools import choose_tools

# Members with a meaning of their own here; all others (top_k, seed, stop, chat_template_kwargs, …) go on as they are.
_OWN_MEMBERS: Final = frozenset((
    "background", "client_metadata", "context_management", "conversation", "include", "input", "instructions",
    "max_output_tokens", "max_tool_calls", "metadata", "moderation", "previous_response_id", "prompt",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier",
    "service_tier", "store", "stream_options", "text", "tool_choice", "tools", "top_logprobs", "truncation",
    "enable_response_messages", "parallel_tool_calls", "n",
))  # fmt: skip
_UNSAYABLE: Final = ("background", "conversation", "prompt")
LOGPROBS: Final = "message.output_text.logprobs"


def to_chat(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if body.get("previous_response_id"):
        raise UnknownPrevious(
            f"Previous response with id '{body['previous_response_id']}' not found.", param="previous_response_id"
        )
    for member in _UNSAYABLE:
        if body.get(member):
            raise BadRequest(
                f"This backend has no Responses API, and chat completions cannot say `{member}`.", param=member
            )
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if item.get("type") == "item_reference":
            raise BadRequest(f"Item with id '{item.get('id')}' not found; send the item itself.", param="input")
        if item.get("type") == "compaction_trigger":
            raise BadRequest(
                "This backend has no Responses API, and a model asked in chat completions makes no `compaction` item; "
                "nothing was sent to it. Let the client sum up the conversation itself.",
                param="input",
            )
    chat = {key: value for key, value in body.items() if key not in _OWN_MEMBERS}
    chat["messages"] = in_turns([without_marks(message) for message in messages])
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if (effort := _newest(body, "reasoning").get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if (form := _response_format(_newest(body, "text").get("format"))) is not None:
        chat["response_format"] = form
    if LOGPROBS in (body.get("include") or ()):
        chat["logprobs"] = True
        if body.get("top_logprobs"):
            chat["top_logprobs"] = body["top_logprobs"]
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    choose_tools(body, chat)
    return chat


def _newest(body: Mapping[str, Any], member: str) -> dict[str, Any]:
    """The member with what later items of the input have changed of it."""
    items = body.get("input")
    updates = [item for item in items if item.get("type") == "configuration_update"] if isinstance(items, list) else []
    newest: dict[str, Any] = {}
    for settings in (body, *updates):
        if isinstance(settings.get(member), dict):
            newest |= settings[member]
    return newest


def _response_format(form: Any) -> dict[str, Any] | None:
    if form is not None and not isinstance(form, dict):
        raise BadRequest("`text.format` must be an object.", param="text.format")
    if form is None or form.get("type") == "text":
        return None
    if form.get("type") != "json_schema":
        return dict(form)
    schema = {k: form[k] for k in ("name", "schema", "strict", "description") if form.get(k) is not None}
    return {"type": "json_schema", "json_schema": schema}
