"""The prompts of a run as the server renders them, asked for before the run begins.

Owns which prompts are asked for and what becomes of the answers: members of the lines that the trainer reads. A prompt
that was captured token by token is not asked for; with a comment or what was said next in it, it is. A reply with tool
calls, whose bytes the server did not tell, is read off the prompt of the turn after it. Not here: how a
server is asked (backends), how the trainer uses it and what it does without (trainer.lessons.samples).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
import structlog

from proxy.backends.base import Backend, Prompt, RenderedPrompt
from proxy.core.errors import BackendBroke
from proxy.dialects import CHAT
from store.records import Completion
from trainer.launch import lessons_of, neutral, teacher_comment, with_calls, with_hint, without_lessons

log = structlog.get_logger()

CONCURRENCY: Final = 4  # the server has people to answer, too


@dataclass
class ServedPrompts:
    neutral: dict[str, dict[str, Any]] = field(default_factory=dict)  # the gate's questions
    choices: list[dict[str, Any]] = field(default_factory=list)  # what a person should know of the rest


@dataclass(frozen=True, slots=True)
class _PromptQuery:
    prompt: Prompt
    into: dict[str, Any]
    member: str


async def add(
    backend: Backend,
    lines: Sequence[dict[str, Any]],
    completions: Mapping[str, Completion],
    questions: Sequence[str],
) -> ServedPrompts:
    """Puts `served`, `served_reply`, and `hinted` into the lines, as far as the server tells; `questions` are the
    gate's. Raises BackendDown."""
    served = ServedPrompts()
    queries = [query for line in lines for query in _of(line, completions[line["completion"]])]
    queries += [_PromptQuery(Prompt(neutral(question)), served.neutral, question) for question in questions]
    failed, cut = [], 0
    for first in range(0, len(queries), CONCURRENCY):
        part = queries[first : first + CONCURRENCY]
        renderings = await asyncio.gather(*(backend.render(query.prompt) for query in part), return_exceptions=True)
        for query, rendered in zip(part, renderings, strict=True):
            if isinstance(rendered, BackendBroke):
                failed.append(rendered.message)
            elif isinstance(rendered, BaseException):
                raise rendered
            elif rendered is not None:
                query.into[query.member] = rendered._asdict()
                cut += query.member == "served" and left_out(query.prompt, rendered) > 0
        if renderings and all(rendered is None for rendered in renderings):
            return served  # this server does not tell
    if failed:
        log.warning("prompts could not be rendered", failed=len(failed), why=failed[0])
        reason = f"of {len(queries)} prompts the server did not render, so the weights' chat template does: {failed[0]}"
        served.choices.append({"name": "not_rendered", "value": len(failed), "why": reason})
    if cut:
        reason = "prompts that the server cut: they train as it read them, without their oldest messages"
        served.choices.append({"name": "cut_prompts", "value": cut, "why": reason})
    return served


def _of(line: dict[str, Any], completion: Completion) -> Iterator[_PromptQuery]:
    prompt = prompt_of(line, completion)
    if not (line["exact"] or line["prompt_token_ids"]):
        yield _PromptQuery(prompt, line, "served")
        if (reply := line.get("reply")) is not None:
            yield _PromptQuery(replace(prompt, messages=with_calls(prompt.messages, reply)), line, "served_reply")
    comment = teacher_comment(line)
    if comment is not None and (chat := with_hint(prompt.messages, comment)) is not None:
        yield _PromptQuery(replace(prompt, messages=chat), line, "hinted")
    if (bare := without_lessons(prompt.messages, lessons_of(line))) is not None:
        yield _PromptQuery(replace(prompt, messages=bare), line, "bare")


def prompt_of(line: Mapping[str, Any], completion: Completion) -> Prompt:
    """The request as the server got it: in the client's format, or said again in chat completions."""
    end = completion.end
    if end is not None and end.translated:
        return Prompt(line["messages"], line["tools"], line["template_kwargs"])
    request = orjson.loads(completion.new.request or b"{}")
    return Prompt(
        line["messages"], line["tools"], line["template_kwargs"], completion.new.dialect or CHAT.name, request
    )


def left_out(prompt: Prompt, rendered: RenderedPrompt) -> int:
    """How many of a person's messages are not in the prompt that the server made. Templates strip spaces."""
    if rendered.text is None:
        return 0
    user_texts = [m.get("content") for m in prompt.messages if m.get("role") == "user"]
    return sum(isinstance(text, str) and text.strip() not in rendered.text for text in user_texts)
