"""Main or side: what the person sees, or what an agent asks on the side (titles, summaries, probes, subagents).

Owns the rules, each with a name that is stored with the completion. The first that fits decides: the header
`x-rl-turn`, then the settings' own rules (`turns.rules`), then those below, then those by structure (`side_requests`),
else main. Pure functions.

The prompts below were read in the packages of the agents (docs/guides/agents.md says which versions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from config.re2_patterns import TextPattern
from config.sections import TurnRule
from proxy.conversation.conversations import text_of
from proxy.conversation.user_text import without_blocks
from proxy.core.errors import BadRequest
from store.captured.tree import SYSTEM_ROLES
from store.records import Turn

HEAD, TAIL = 4000, 2000  # characters of a prompt that are looked at: a task is said first or last
DEFAULT: Final = "default"  # none of the rules fits
TINY: Final = 5  # no answer for a person fits in so few tokens
WARM_UP: Final = "warm-up"  # the rule of a request in which nobody said anything
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")

RULES: Final = (
    # Headers by which agents themselves say that nobody reads this.
    TurnRule(name="subagent", header="x-claude-code-agent-id"),
    TurnRule(name="subagent", header="x-openai-subagent"),
    TurnRule(name="subagent", header="x-codex-parent-thread-id"),
    TurnRule(name="subagent", header="x-parent-session-id"),  # opencode
    TurnRule(name="auxiliary", header="x-claude-code-auxiliary-type"),
    # Copilot CLI. Its main turns have `conversation-user`, or none behind a tool's result.
    TurnRule(name="subagent", header="x-interaction-type: conversation-subagent"),
    TurnRule(name="summary", header="x-interaction-type: conversation-compaction"),
    TurnRule(name="auxiliary", header="x-interaction-type: conversation-background"),
    TurnRule(name="auxiliary", header="x-interaction-type: conversation-sampling"),
    TurnRule(name="probe", max_tokens=TINY),
    TurnRule(name="probe", last=r"^Please say 'hello, world'$"),  # Inspect, over Responses: may it ask for reasoning?
    TurnRule(name="title", system=r"You are a title generator\. You output ONLY a thread title"),  # opencode
    TurnRule(name="title", system=r"(?i)generate a (concise|short|brief)[^\n]{0,60} title"),
    TurnRule(name="title", last=r"(?i)^(### Task:\s*)?generate a (concise|short|brief)[^\n]{0,60} (title|name)\b"),
    TurnRule(name="title", last=r"(?i)^generate a title for this conversation:"),
    TurnRule(name="title", last=r"(?i)^generate a short kebab-case name"),  # Claude Code
    TurnRule(name="title", last=r"(?i)reply with a title for the chat that is 3-4 words"),  # Continue
    TurnRule(name="title", system=r"(?i)Summarize this coding conversation in under 50 characters"),
    TurnRule(name="topic", system=r"Analyze if this message indicates a new conversation topic"),  # Claude Code
    TurnRule(name="suggestion", last=r"^\[SUGGESTION MODE:"),  # Claude Code
    TurnRule(name="summary", last=r"Your task is to create a detailed summary of (the|this) conversation"),
    TurnRule(name="summary", last=r"^You are performing a CONTEXT CHECKPOINT COMPACTION"),  # Codex
    TurnRule(name="summary", system=r"You are a helpful AI assistant tasked with summarizing conversations"),
    TurnRule(name="summary", system=r"context summarization (?:agent|assistant)"),  # opencode, pi
    # nanobot asks it as a turn like any other, under its own system prompt: only the words tell.
    TurnRule(name="summary", last=r"^Create a compact replacement checkpoint for this session\."),
    # By structure these are known only if they come at once, or whole below a stream.
    TurnRule(name="review", last=r"^Review the conversation above and consider saving to memory"),  # Hermes
    TurnRule(name="review", last=r"^Review the conversation above and update (?:the skill library|two things)"),
    TurnRule(
        name="summary", last=r"^Summarize the discussion briefly in 200 words or less to use as a prompt"
    ),  # aichat
    TurnRule(name="summary", system=r"\*Briefly\* summarize this partial conversation about programming"),  # aider
    TurnRule(name="commit-message", system=r"one-line Git commit messages based on the provided diffs"),  # aider
    # Open WebUI's tasks all begin so.
    TurnRule(name="tags", last=r"^### Task:\s*Generate 1-3 broad tags"),
    TurnRule(name="follow-ups", last=r"^### Task:\s*(Suggest 3-5 relevant follow-up|Predict 3-5 useful messages)"),
    TurnRule(name="search-query", last=r"^### Task:\s*Analyze the chat history to determine the necessity of"),
    TurnRule(name="image-prompt", last=r"^### Task:\s*Generate a detailed prompt for am? image generation task"),
    TurnRule(name="autocomplete", last=r"^### Task:\s*You are an autocompletion system"),
    TurnRule(name="tool-choice", system=r"^Available Tools: [\s\S]*choose and return the correct tool"),
    TurnRule(name="no-tools", tools=False),
)


class Decision(NamedTuple):
    turn: Turn
    rule: str


class KnownTurn(NamedTuple):
    """Classify the messages of a request."""

    system: Sequence[Mapping[str, Any]]  # those with system texts
    used_tools: bool


def turn_in_header(headers: Mapping[str, str]) -> Turn | None:
    """Read rlproxy's own header. Raises BadRequest."""
    header = headers.get("x-rl-turn")
    match header if header is None else header.strip().lower():
        case "main":
            return "main"
        case "side":
            return "side"
        case None:
            return None
        case _:
            raise BadRequest("The header `x-rl-turn` must be `main` or `side`.", param="x-rl-turn")


def is_marked_side(headers: Mapping[str, str], rules: Sequence[TurnRule] = ()) -> bool:
    """A header alone says that this is a side turn: ours, or the first one that a rule knows. A text says it never
    here, as whoever wrote it may not be the agent."""
    if (turn := turn_in_header(headers)) is not None:
        return turn == "side"
    matching = (rule for rule in (*rules, *RULES) if rule.header and _has(headers, rule.header) and _is_bare(rule))
    return next((rule.turn == "side" for rule in matching), False)


def _has(headers: Mapping[str, str], header: str) -> bool:
    """Tell whether a header is there and not empty; of `NAME: VALUE`, whether it has this value."""
    name, colon, value = header.partition(":")
    text = headers.get(name.strip(), "")
    return text.strip().lower() == value.strip().lower() if colon else bool(text)


def _is_bare(rule: TurnRule) -> bool:
    """It looks at nothing but a header."""
    return rule.system is None and rule.last is None and rule.max_tokens is None and rule.tools is None


def turn_of(
    headers: Mapping[str, str],
    body: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
    rules: Sequence[TurnRule] = (),
    known_turn: KnownTurn | None = None,
    words: str | None = None,
) -> Decision:
    """`known_turn`: what of these messages need not be looked for; `words`: a person's last ones, likewise.

    Raises BadRequest where our header says neither main nor side.
    """
    if "x-rl-turn" in headers and (turn := turn_in_header(headers)) is not None:
        return Decision(turn, "header")
    if known_turn is None:
        known_turn = KnownTurn([m for m in messages if m.get("role") in SYSTEM_ROLES], _used_tools(messages))
    system, last = _system_text(known_turn.system), _said_last(messages) if words is None else words
    if len(last) > HEAD + TAIL:
        last = _ends(last)
    # Fixed words are searched for before their pattern is, in a text of ASCII alone.
    low_system = system.lower() if system.isascii() else None
    low_last = last.lower() if last.isascii() else None
    limit, toolless = limit_of(body), not tools and known_turn.used_tools and not _after_a_tool(messages)
    ours = _OURS if system else _OURS_WITHOUT_SYSTEM
    for rule, header, in_system, in_last in (*map(_ready_rule, rules), *ours) if rules else ours:
        if header is not None and header not in headers:
            continue
        if in_last is not None:
            if low_last is not None and not (low_last.startswith(in_last.begins) and in_last.has in low_last):
                continue
            if in_last.match(last) is None:
                continue
        if in_system is not None:
            if low_system is not None and not (low_system.startswith(in_system.begins) and in_system.has in low_system):
                continue
            if in_system.match(system) is None:
                continue
        if (
            (rule.header is None or _has(headers, rule.header))
            and (rule.max_tokens is None or (limit is not None and limit <= rule.max_tokens))
            and (rule.tools is None or toolless != rule.tools)
        ):
            return Decision(rule.turn, rule.name)
    if not last and not system and not any(map(_says_something, messages)):
        return Decision("side", WARM_UP)
    return Decision("main", DEFAULT)


class _Search(NamedTuple):
    """A rule's pattern, and how every text begins that fits it, or what it has in it, in small letters."""

    match: Callable[[str], Any]  # None for no match
    begins: str
    has: str


class _CompiledRule(NamedTuple):
    rule: TurnRule
    header: str | None  # without which it does not fit
    system: _Search | None
    last: _Search | None


def _ready(rule: TurnRule) -> _CompiledRule:
    system, last = (None if pattern is None else _search(pattern) for pattern in (rule.system, rule.last))
    return _CompiledRule(rule, _header_name(rule), system, last)


def _ready_rule(rule: TurnRule) -> _CompiledRule:
    """A rule of the settings."""
    system, last = (None if pattern is None else _own_search(pattern) for pattern in (rule.system, rule.last))
    return _CompiledRule(rule, _header_name(rule), system, last)


def _header_name(rule: TurnRule) -> str | None:
    name, colon, value = (rule.header or "").partition(":")
    return name.strip() if name and (value.strip() or not colon) else None


@lru_cache(maxsize=256)
def _own_search(pattern: str) -> _Search:
    words = _words(pattern)
    begins = words if _begins(pattern) else ""
    return _Search(TextPattern(pattern).search, begins, "" if begins else words)


def _search(pattern: str) -> _Search:
    compiled, words = re.compile(pattern), _words(pattern)
    return _Search(compiled.match, words, "") if _begins(pattern) else _Search(compiled.search, "", words)


def _words(pattern: str) -> str:
    """Words that are in every text that fits, in small letters."""
    bare_pattern = pattern.removeprefix("(?i)")
    if _has_choice(pattern) or bare_pattern.startswith("(?"):
        return ""
    return re.match(r"\^?((?:[A-Za-z0-9 ,'-](?![*?{]))*)", bare_pattern)[1].lower()  # type: ignore[index]


def _begins(pattern: str) -> bool:
    """Tell whether it is to be looked for at the beginning only."""
    return pattern.removeprefix("(?i)").startswith("^") and not _has_choice(pattern)


def _has_choice(pattern: str) -> bool:
    """Tell whether it can be read in more than one way outside of all brackets."""
    bare = re.sub(r"\\.|\[\^?\]?[^\]]*(?:\]|\Z)", "", pattern)
    depth = 0
    for letter in bare:
        depth += (letter == "(") - (letter == ")")
        if letter == "|" and depth == 0:
            return True
    return False


def _said_last(messages: Sequence[Mapping[str, Any]]) -> str:
    """Without agents' blocks."""
    for message in reversed(messages):
        if message.get("role") == "user" and (text := _text(message)):
            return text
    return ""


def _system_text(messages: Sequence[Mapping[str, Any]]) -> str:
    texts: list[str] = []
    for message in messages:
        content = message.get("content")
        texts.append(content.strip() if type(content) is str else text_of(message) or "")
    text = "\n".join(texts)
    return text if len(text) <= HEAD + TAIL else _ends(text)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [str(part["text"]) for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return without_blocks("\n".join(texts))


def _ends(text: str) -> str:
    return f"{text[:HEAD]}\n{text[-TAIL:]}"


def limit_of(body: Any) -> int | None:
    """How long the answer may be, in any dialect's word for it. At 0 a server reads the prompt and says nothing, but
    Ollama takes it for unlimited."""
    if not isinstance(body, Mapping):
        return None
    options = body.get("options")  # Ollama
    limits = [*map(body.get, _LIMITS), (options.get("num_predict") or None) if isinstance(options, Mapping) else None]
    numbers = [value for value in limits if isinstance(value, int | float) and not isinstance(value, bool)]
    return min((int(value) for value in numbers if 0 <= value < math.inf), default=None)


def _says_something(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text", part) if isinstance(part, Mapping) else part for part in parts)
    return bool(message.get("tool_calls")) or any(bool(t.strip()) if isinstance(t, str) else bool(t) for t in texts)


def _after_a_tool(messages: Sequence[Mapping[str, Any]]) -> bool:
    """It goes on with what a tool brought: the answer of this very turn, whether it may call more of them or not."""
    newest = next((m for m in reversed(messages) if m.get("role") not in SYSTEM_ROLES), None)
    return newest is not None and newest.get("role") == "tool"


def _used_tools(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(m.get("role") == "tool" or m.get("tool_calls") for m in messages)


_OURS: Final = tuple(map(_ready, RULES))
_OURS_WITHOUT_SYSTEM: Final = tuple(ready for ready in _OURS if ready.system is None)  # an empty text fits no pattern
