"""How a server renders conversations, where it does not say so itself: found by how many tokens it read.

Owns the plausible ways to render with the weights' chat template, and the choice among them. A server's own template
often differs from that of the weights in little. It has no default system text, an empty one, or no place for tools.
Not here: the template itself and what the choice is used for (samples).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

PINNED: Final = {"system", "developer"}  # roles in whose place a template puts its default system text
MOST: Final = 0.5  # share of the known prompts that a way has to explain: the others may have been cut by the server
SHORTEST: Final = 0.5  # of the tokens of a rendering: no other template is so short
FAR: Final = 10**6  # tokens, by which a prompt differs that cannot be compared by their number
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RenderingWay:
    """One way to render with the chat template of the weights."""

    system: Literal["default", "none", "empty"] = "default"  # where the conversation has no system message
    tools: bool = True
    parts: Literal["lines", "joined", "apart"] = "lines"  # what becomes of a message of several text parts

    def __str__(self) -> str:
        changes = [] if self.system == "default" else [f"with {self.system.replace('none', 'no')} default system text"]
        changes += [] if self.tools else ["without the tools"]
        changes += {"lines": [], "joined": ["with joined parts"], "apart": ["with each part as a message"]}[self.parts]
        return " ".join(["the weights' chat template", " and ".join(changes)]).rstrip()


AS_IS: Final = RenderingWay()
PLAIN: Final = (
    AS_IS,
    RenderingWay("none"),
    RenderingWay("empty"),
    RenderingWay(tools=False),
    RenderingWay("none", False),
    RenderingWay("empty", False),
)
# vLLM makes lines of parts, mlx-lm joins them, and each is a message of its own at Ollama's chat completions.
WAYS: Final = (*PLAIN, *(replace(way, parts=parts) for parts in ("joined", "apart") for way in PLAIN))


class KnownPrompt(NamedTuple):
    """A prompt of which its server said something: its tokens, or only how many they are."""

    messages: Sequence[Mapping[str, Any]]
    tools: Any
    template_kwargs: Mapping[str, Any] | None
    tokens: int | None
    ids: Ids | None
    as_sent: bool = False  # whether the messages are as they were written, white space and parts


class RenderingChoice(NamedTuple):
    way: RenderingWay
    prompts: int  # how many prompts it was chosen by
    explained: int  # and how many of them it makes as the server did
    wrong: str | None  # why the template is not to be trusted for other prompts of this server; None: it is


def choose(
    prompts: Sequence[KnownPrompt], render: Callable[[KnownPrompt, RenderingWay], Ids | None]
) -> RenderingChoice:
    """The way that explains most of what is known, the plainest first; of equals the nearer one. `render` returns None
    where the template refuses.

    Servers word tools in many ways. Where no way explains most prompts, those without tools are asked alone: each of
    the others is refused by its own count.
    """
    choice = _choose(prompts, render)
    without_tools = [prompt for prompt in prompts if not prompt.tools]
    if choice.wrong is None or len(without_tools) in (0, len(prompts)):
        return choice
    plain = _choose(without_tools, render)
    return choice if plain.wrong is not None else plain._replace(prompts=len(prompts))


def _choose(
    prompts: Sequence[KnownPrompt], render: Callable[[KnownPrompt, RenderingWay], Ids | None]
) -> RenderingChoice:
    if not prompts:
        return RenderingChoice(AS_IS, 0, 0, None)
    candidates: list[tuple[int, int, int, RenderingWay]] = []
    for n, way in enumerate(WAYS if any(_has_parts(prompt) for prompt in prompts) else PLAIN):
        renderings = [(prompt, render(prompt, way)) for prompt in prompts]
        exact = sum(ids is not None and _token_gap(ids, prompt) == 0 for prompt, ids in renderings)
        distance = sum(FAR if ids is None else abs(_token_gap(ids, prompt)) for prompt, ids in renderings)
        candidates.append((-exact, distance, n, way))
        if exact == len(prompts):
            break
    *_, best = min(candidates)
    explained = sum(ids is not None and _explains(ids, prompt) for prompt in prompts for ids in [render(prompt, best)])
    if explained > MOST * len(prompts):
        return RenderingChoice(best, len(prompts), explained, None)
    return RenderingChoice(AS_IS, len(prompts), explained, _misfit(prompts, render))


def is_near(read_tokens: int, rendered_tokens: int, messages: int, *, as_sent: bool) -> bool:
    """Tell whether a prompt that renders to so many tokens can be the one that the server read.

    A token that begins every text may be counted and not rendered. Messages that are not `as_sent` lack the white space
    around them, which is a token or two of each. A message that the server left out is more than that.
    """
    return 0 <= read_tokens - rendered_tokens <= (2 if as_sent else 2 * messages)


def _has_parts(prompt: KnownPrompt) -> bool:
    contents = (message.get("content") for message in prompt.messages)
    return any(isinstance(content, list) and len(content) > 1 for content in contents)


def _token_gap(rendered: Ids, prompt: KnownPrompt) -> int:
    if prompt.ids is not None:
        return 0 if rendered == prompt.ids else abs(len(prompt.ids) - len(rendered)) or FAR
    return (prompt.tokens or 0) - len(rendered)


def _explains(rendered: Ids, prompt: KnownPrompt) -> bool:
    if prompt.ids is not None:
        return rendered == prompt.ids
    return is_near(prompt.tokens or 0, len(rendered), len(prompt.messages), as_sent=prompt.as_sent)


def _misfit(prompts: Sequence[KnownPrompt], render: Callable[[KnownPrompt, RenderingWay], Ids | None]) -> str:
    for prompt in prompts:
        rendered = render(prompt, AS_IS)
        read_tokens = prompt.tokens if prompt.ids is None else len(prompt.ids)
        if rendered is not None and not _explains(rendered, prompt):
            count = "other ones" if len(rendered) == read_tokens else f"{len(rendered)}"
            guess = "another chat template"
            if read_tokens is not None and read_tokens < len(rendered) * SHORTEST:
                guess = "it cut the prompt, or has another chat template"
            return f"the server read {read_tokens} tokens where the weights' chat template makes {count}: {guess}"
    return "the weights' chat template refuses these conversations"


def without_default_system(rendered: Ids, with_system: Ids | None, special: set[int], bos: int | None) -> Ids:
    """A prompt without the first message, where that is the template's own and no message of the conversation.

    `with_system` is the same conversation with a system message before it. Where that has as many messages, it takes
    the place of the first one of `rendered`, which is a default. Each message begins with the special token that the
    first one begins with.
    """
    start = int(len(rendered) > 1 and rendered[0] == bos and rendered[1] in special)
    if with_system is None or len(rendered) <= start or (head := rendered[start]) not in special:
        return rendered
    if rendered.count(head) != with_system.count(head):
        return rendered
    second = rendered.index(head, start + 1) if head in rendered[start + 1 :] else start
    return rendered[:start] + rendered[second:]
