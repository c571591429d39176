"""One verdict: what cannot be read is asked once more in the shape of a schema, where the server takes one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from proxy.signals.judge import AnswerJudge, Endpoint, JudgeDown
from proxy.signals.questions import LABEL_SHAPE, REFUTE_SHAPE, JudgedTurn
from scripts.harness.rule_judge import FakeJudge

TURN = JudgedTurn("How long?", "Eight minutes.", "no, shorter")


@pytest.fixture
async def server() -> AsyncIterator[FakeJudge]:
    server = FakeJudge(lambda request, reply, follow_up: "correction")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def judge(server: FakeJudge) -> AsyncIterator[AnswerJudge]:
    async with aiohttp.ClientSession() as http:
        yield AnswerJudge(http, Endpoint(server.url, "m", {}), 1)


def shapes(server: FakeJudge) -> list[object]:
    formats = [request.get("response_format") for request in server.requests]
    return [None if format is None else format["json_schema"]["schema"] for format in formats]


async def test_an_answer_that_can_be_read_is_asked_once(server: FakeJudge, judge: AnswerJudge) -> None:
    verdict = await judge.verdict(TURN)
    assert (verdict.label, verdict.instruction, verdict.tokens) == ("correction", "no, shorter", 200)
    assert shapes(server) == [None, None]


async def test_one_that_cannot_is_asked_in_a_shape(server: FakeJudge, judge: AnswerJudge) -> None:
    server.rambles = True
    verdict = await judge.verdict(TURN)
    assert (verdict.label, verdict.instruction) == ("correction", "no, shorter")
    assert verdict.tokens == 400, "all four answers are paid for"
    assert shapes(server) == [None, LABEL_SHAPE, None, REFUTE_SHAPE]


@pytest.mark.parametrize("status", [400, 422, 501])
async def test_a_server_without_schemas_leaves_it_unclear(server: FakeJudge, judge: AnswerJudge, status: int) -> None:
    server.rambles, server.schema_status = True, status
    verdict = await judge.verdict(TURN)
    assert (verdict.label, verdict.reason) == ("unclear", "the judge's answer cannot be read")
    assert len(server.requests) == 2


async def test_a_server_that_goes_down_in_between_keeps_the_turn(server: FakeJudge, judge: AnswerJudge) -> None:
    server.rambles, server.schema_status = True, 503
    with pytest.raises(JudgeDown, match="503"):
        await judge.verdict(TURN)
