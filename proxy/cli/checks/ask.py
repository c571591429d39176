"""Questions of an evaluation: to the versions, through the proxy and never captured; and to the judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from proxy.checks.answers import NotAnAnswer, parse
from proxy.checks.checks_file import ChecksError
from proxy.checks.criteria import AskJudge
from proxy.checks.evaluation import Ask, AskedVersion, NotAnswered

if TYPE_CHECKING:
    from config.settings import Settings
    from proxy.cli.http import HomeClient

UNCAPTURED: Final = {"x-rl-capture": "off", "x-rl-turn": "side"}
JUDGE_TOKENS: Final = 256
MOST_MESSAGE: Final = 300


def ask_through(client: HomeClient) -> Ask:
    """Raises Unreachable where the proxy goes away: then nothing further is asked."""

    async def ask(version: AskedVersion, body: Mapping[str, Any]) -> Any:
        request = {**body, "model": version.model}
        status, content = await asyncio.to_thread(client.answer, "/v1/chat/completions", request, UNCAPTURED)
        text = content.decode(errors="replace")
        if status != 200:
            raise NotAnswered(f"{version.model} answered {status}: {_message(text)[:MOST_MESSAGE]}")
        try:
            return json.loads(text)
        except ValueError:
            raise NotAnswered(f"what {version.model} answered is not JSON") from None

    return ask


def _message(text: str) -> str:
    """An error's own words, whoever shaped it; else all of it."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text


@asynccontextmanager
async def judge_of(settings: Settings, client: HomeClient, model: str) -> AsyncIterator[AskJudge]:
    """The judge of the settings; without a server of its own the base model. Raises ChecksError where what it would be
    sent leaves this machine and nobody has accepted that."""
    import aiohttp

    from proxy.core.redirects import refuse_all
    from proxy.core.server_url import base_url
    from proxy.signals.judge import AnswerJudge, Endpoint, JudgeDown

    section = settings.judge
    if not section.url:
        base = AskedVersion(0, f"{model}@base", "")

        async def ask_base(messages: Sequence[Mapping[str, str]]) -> str:
            body = {"messages": list(messages), "temperature": 0.0, "max_tokens": JUDGE_TOKENS}
            try:
                return parse(await ask_through(client)(base, body)).text
            except (NotAnswered, NotAnAnswer) as error:
                raise JudgeDown(str(error)) from None

        yield ask_base
        return
    if not client.call("GET", "/rl/judge")["accepted"]:
        raise ChecksError(
            f"the judge at {section.url} is another machine, and nobody has accepted that texts go there: "
            "`rlproxy judge` shows what, `rlproxy judge --accept` accepts it. Nothing was asked."
        )
    key = section.api_key
    headers = {} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"}
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as http:
        judge = AnswerJudge(http, Endpoint(base_url(section.url), section.model or model, headers), 1)

        async def ask(messages: Sequence[Mapping[str, str]]) -> str:
            return (await judge.ask(messages, 0.0)).text

        yield ask
