"""Versions × prompts × checks: every prompt asked of every version, each answer kept as it comes.

Owns the order and how many are asked at once. What was answered before is not asked again. A prompt that could not be
answered has no verdicts, and its reason is told. Not here: who is asked (the caller), what the verdicts come to
(summary).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.checks.answers import AnswerCache, CheckedAnswer, NotAnAnswer, key_of, parse
from proxy.checks.checks_file import CheckPrompt, Suite
from proxy.checks.criteria import Criteria, CriterionVerdict


class AskedVersion(NamedTuple):
    version: int
    model: str  # the name to ask for
    identity: str  # changes with the weights, so that no answer of others is taken for its own
    examples: tuple[Mapping[str, Any], ...] = ()  # chat messages that it is shown before each prompt


class NotAnswered(Exception):
    """One prompt could not be answered by one version; the next one may be."""


Ask = Callable[[AskedVersion, Mapping[str, Any]], Awaitable[Any]]
"""Posts this chat request; the JSON answer. Raises NotAnswered."""


class EvaluationRow(NamedTuple):
    """One prompt asked of one version. `problem`: the reason where the answer is missing."""

    version: int
    prompt: CheckPrompt
    answer: CheckedAnswer | None
    verdicts: Mapping[str, CriterionVerdict]
    problem: str = ""
    is_cached: bool = False

    @property
    def ok(self) -> bool | None:
        """All its checks hold; None where none could be made, or one could not and the others hold."""
        results = [verdict.ok for verdict in self.verdicts.values()]
        if False in results:
            return False
        return None if None in results or not results else True


class Evaluation:
    def __init__(self, suite: Suite, criteria: Criteria, ask: Ask, cache: AnswerCache, *, at_once: int = 4) -> None:
        self._suite = suite
        self._criteria = criteria
        self._ask = ask
        self._cache = cache
        self._room = asyncio.Semaphore(at_once)

    async def run(
        self, versions: Sequence[AskedVersion], tell: Callable[[EvaluationRow], object] = lambda row: None
    ) -> list[EvaluationRow]:
        """All rows, by version and prompt; `tell` hears each as it comes. Raises OSError where the cache cannot be
        written."""

        async def ask_one(version: AskedVersion, prompt: CheckPrompt) -> EvaluationRow:
            async with self._room:
                row = await self._row(version, prompt)
            tell(row)
            return row

        tasks = [asyncio.ensure_future(ask_one(each, prompt)) for each in versions for prompt in self._suite.prompt]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # where one raised: nothing further is asked
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _row(self, version: AskedVersion, prompt: CheckPrompt) -> EvaluationRow:
        body = request_body(self._suite, prompt, version.examples)
        key = key_of(version.identity, body)
        answer = await asyncio.to_thread(self._cache.get, key, prompt.completion) if not version.examples else None
        is_cached = answer is not None
        if answer is None:
            try:
                answer = await self._answer(version, body)
            except NotAnswered as error:
                return EvaluationRow(version.version, prompt, None, {}, str(error))
            if not version.examples:  # words of others' answers may be in it, and forgetting would not find it
                await asyncio.to_thread(self._cache.keep, key, prompt.completion, answer)
        verdicts = {
            check.name: await self._criteria.verdict(check, prompt, answer)
            for check in self._suite.check
            if check.concerns(prompt)
        }
        return EvaluationRow(version.version, prompt, answer, verdicts, is_cached=is_cached)

    async def _answer(self, version: AskedVersion, body: Mapping[str, Any]) -> CheckedAnswer:
        try:
            return parse(await self._ask(version, body))
        except NotAnAnswer as error:
            raise NotAnswered(str(error)) from None


def request_body(suite: Suite, prompt: CheckPrompt, examples: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The chat request without a model, the same for each version but for the `examples` after its system texts."""
    messages = prompt.conversation
    start = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
    body: dict[str, Any] = {
        "messages": [*messages[:start], *examples, *messages[start:]],
        "max_tokens": suite.max_tokens,
        "temperature": suite.temperature,
        "seed": suite.seed,
    }
    return {**body, "tools": list(prompt.tools)} if prompt.tools else body
