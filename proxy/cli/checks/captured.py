"""Captured prompts as prompts of a suite: the newest main turns, each prompt once.

Owns which are taken, and which of them trained a version. Not here: the export's lines (store.copies.export).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from proxy.backends.base import Prompt as ServedPrompt
from proxy.checks.checks_file import CapturedPrompts, CheckPrompt
from proxy.cli.exports.examples import NotAnExample, prompt_of

if TYPE_CHECKING:
    from proxy.cli.http import HomeClient


def prompts(client: HomeClient, selection: CapturedPrompts) -> list[CheckPrompt]:
    """The newest last. Ends the command where the proxy refuses or is not there."""
    filters = {"turn": "main", "session": selection.session, "user": selection.user}
    query = urlencode({name: value for name, value in filters.items() if value is not None})
    lines = (orjson.loads(line) for line in client.lines(f"/rl/export?{query}"))
    return choose(lines, trained_completions(client), selection)


def choose(lines: Iterable[Mapping[str, Any]], trained: set[str], selection: CapturedPrompts) -> list[CheckPrompt]:
    """One prompt of several completions has the name of the newest, and has trained where one of them did."""
    newest: dict[str, CheckPrompt] = {}
    trained_prompts: set[str] = set()
    for line in lines:
        try:
            messages, tools = prompt_of(line)
        except NotAnExample:
            continue
        key = hashlib.sha256(orjson.dumps([messages, tools], option=orjson.OPT_SORT_KEYS)).hexdigest()
        if line["id"] in trained:
            trained_prompts.add(key)
        newest.pop(key, None)
        request = ServedPrompt(messages, tools).chat()  # arguments of calls as a request has them
        newest[key] = CheckPrompt.model_validate({"name": line["id"][:80], "completion": line["id"], **request})
    marked = (prompt.model_copy(update={"trained": key in trained_prompts}) for key, prompt in newest.items())
    return list(deque((each for each in marked if selection.trained or not each.trained), maxlen=selection.count))


def trained_completions(client: HomeClient) -> set[str]:
    """Completions whose ratings trained a version."""
    return {completion for run in _runs(client) for completion in _used(client.call("GET", f"/rl/runs/{run}"))}


def _runs(client: HomeClient) -> Iterator[int]:
    yield from (adapter["run"] for adapter in client.call("GET", "/rl/adapters")["data"] if adapter["run"])


def _used(run: Mapping[str, Any]) -> Iterator[str]:
    """Those kept back for the gate did not train."""
    yield from (sample["completion"] for sample in run["account"] if sample.get("used") and sample["completion"])
