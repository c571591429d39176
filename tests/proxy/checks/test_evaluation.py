"""Versions × prompts: what is asked, what is kept, and what it comes to; JUnit that a reader of it takes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from proxy.checks import answers, results
from proxy.checks.answers import AnswerCache, CheckedAnswer, NotAnAnswer, ToolCall, key_of, parse
from proxy.checks.checks_file import CheckPrompt, Suite
from proxy.checks.criteria import Criteria
from proxy.checks.evaluation import AskedVersion, Evaluation, EvaluationRow, NotAnswered
from proxy.checks.junit import junit
from proxy.checks.summary import summarise

BASE, V1 = AskedVersion(0, "m@base", "m|0"), AskedVersion(1, "m@v1", "m|1")


def suite(prompts: int = 4, **settings: Any) -> Suite:
    rows = [CheckPrompt(name=f"p{n}", text=f"say {n}", completion="rl-3" if n == 3 else None) for n in range(prompts)]
    checks = [
        {"name": "says it", "kind": "regex", "pattern": "say"},
        {"name": "short", "kind": "length", "max_words": 2, "prompts": ["p0", "p1"]},
    ]
    return Suite.model_validate({"prompt": rows, "check": checks, "name": "checks.toml", **settings})


class Model:
    """Says the prompt, v1 with a word more; refuses one prompt."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    async def __call__(self, version: AskedVersion, body: Mapping[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        self.asked.append((version.version, text))
        if text == "say 2" and version.version == 1:
            raise NotAnswered("too busy")
        return {"choices": [{"message": {"content": text + (" again" if version.version else "")}}]}


async def rows_of(model: Any, cache: AnswerCache, suite: Suite, tell: Any = lambda row: None) -> list[EvaluationRow]:
    return await Evaluation(suite, Criteria(suite), model, cache).run([BASE, V1], tell)


async def test_each_prompt_is_asked_once_and_known_the_next_time(tmp_path: Path) -> None:
    model, cache, heard = Model(), AnswerCache(tmp_path), []
    rows = await rows_of(model, cache, suite(), heard.append)
    assert len(model.asked) == len(heard) == 8
    assert [row.ok for row in rows] == [True, True, True, True, False, False, None, True]
    assert rows[6].problem == "too busy"
    assert oct((tmp_path / "checks").stat().st_mode)[-3:] == "700"
    model.asked.clear()
    again = await rows_of(model, AnswerCache(tmp_path), suite())
    assert model.asked == [(1, "say 2")]  # what was not answered is asked again
    assert [row.is_cached for row in again] == [True] * 6 + [False, True]
    model.asked.clear()
    await rows_of(model, AnswerCache(tmp_path, reads=False), suite())
    await rows_of(model, AnswerCache(tmp_path), suite(max_tokens=5))  # another question
    assert len(model.asked) == 16


async def test_a_cache_file_that_is_damaged_is_asked_again(tmp_path: Path) -> None:
    model = Model()
    await rows_of(model, AnswerCache(tmp_path), suite(2))
    for file in (tmp_path / "checks/answers/given").iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    await rows_of(model, AnswerCache(tmp_path), suite(2))
    assert len(model.asked) == 8


async def test_nothing_further_is_asked_when_the_server_goes(tmp_path: Path) -> None:
    class Gone(Exception):
        pass

    asked = 0

    async def ask(version: AskedVersion, body: Mapping[str, Any]) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        raise Gone

    with pytest.raises(Gone):
        await rows_of(ask, AnswerCache(tmp_path), suite(40))
    assert asked <= 8


async def test_what_is_forgotten_and_what_expires_takes_its_answers_along(tmp_path: Path) -> None:
    rows = await rows_of(Model(), AnswerCache(tmp_path), suite())
    results.keep(tmp_path, summarise(suite(), [0, 1], rows))
    captured = tmp_path / "checks/answers" / answers.folder_name("rl-3")
    assert len(list(captured.iterdir())) == 2 and len(results.recent(tmp_path, 9)) == 1
    answers.forget(tmp_path, ["rl-other"])
    results.forget(tmp_path, ["rl-other"])
    assert captured.exists() and results.recent(tmp_path, 9)
    answers.expire(tmp_path, captured.stat().st_mtime - 1)
    assert captured.exists()
    os.utime(captured, (1, 1))
    answers.expire(tmp_path, 2)
    assert not captured.exists() and list((tmp_path / "checks/answers/given").iterdir())
    answers.forget(tmp_path, ["rl-3"])
    results.forget(tmp_path, ["rl-3"])
    assert results.recent(tmp_path, 9) == []


async def test_a_summary_has_shares_pairs_and_no_text(tmp_path: Path) -> None:
    rows = await rows_of(Model(), AnswerCache(None), suite())
    summary = summarise(suite(), [0, 1], rows)
    base, v1 = summary["versions"]
    assert (base["all"]["passed"], base["all"]["failed"], base["all"]["share"]) == (4, 0, 1.0)
    assert (v1["all"]["passed"], v1["all"]["failed"], v1["unanswered"]) == (1, 2, 1)
    assert v1["checks"]["short"]["low"] == 0.0 and v1["checks"]["says it"]["passed"] == 3
    (pair,) = summary["comparisons"]
    assert (pair["prompts"], pair["better"], pair["worse"], pair["p"]) == (3, 0, 2, 0.5)
    assert (summary["prompts"], summary["captured"], summary["trained"]) == (4, 1, 0)
    assert "say 0" not in repr(summary) and not (tmp_path / "checks").exists()


async def test_results_keep_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_KEPT", 3)
    for number in range(5):
        results.keep(tmp_path, {"number": number, "rows": []})
    assert [each["number"] for each in results.recent(tmp_path, 9)] == [4, 3, 2]


async def test_junit_counts_failures_and_errors() -> None:
    rows = await rows_of(Model(), AnswerCache(None), suite())
    text = junit(summarise(suite(), [0, 1], rows))
    base, v1 = ElementTree.fromstring(text).findall("testsuite")
    assert (base.get("name"), base.get("tests"), base.get("failures"), base.get("errors")) == ("base", "6", "0", "0")
    assert (v1.get("tests"), v1.get("failures"), v1.get("errors")) == ("6", "2", "1")
    (failure, *_) = v1.iter("failure")
    assert failure.get("message") == "has 3 words, more than 2"


async def test_a_reader_of_junit_reads_it(tmp_path: Path) -> None:
    """junitparser 4, where it is installed: `pip install junitparser`."""
    junitparser = pytest.importorskip("junitparser")
    file = tmp_path / "checks.xml"
    file.write_bytes(junit(summarise(suite(), [0, 1], await rows_of(Model(), AnswerCache(None), suite()))))
    base, v1 = junitparser.JUnitXml.fromfile(str(file))
    assert [(each.name, each.tests, each.failures, each.errors) for each in (base, v1)] == [
        ("base", 6, 0, 0),
        ("v1", 6, 2, 1),
    ]
    assert [result.message for case in v1 for result in case.result][-1] == "too busy"


async def test_junit_has_no_character_that_xml_forbids() -> None:
    strange = Suite.model_validate({
        "prompt": [{"name": "a&<\ufffe", "text": "x"}], "check": [{"name": "c", "kind": "length"}],
    })  # fmt: skip

    async def ask(version: AskedVersion, body: Mapping[str, Any]) -> Any:
        raise NotAnswered("\x00\x1b[31m]]>")

    rows = await rows_of(ask, AnswerCache(None), strange)
    suites = ElementTree.fromstring(junit(summarise(strange, [0, 1], rows)))
    assert suites.find(".//testcase").get("name") == "a&<\ufffd"  # type: ignore[union-attr]


def test_answers_out_of_chat_completions() -> None:
    call = {"function": {"name": "w", "arguments": '{"city": "Oslo"}'}}
    body = {
        "choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}],
        "usage": {"completion_tokens": 7},
    }
    assert parse(body) == CheckedAnswer("", (ToolCall("w", {"city": "Oslo"}),), "tool_calls", 7)
    parts = {"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]}
    assert parse(parts).text == "ab"
    for broken in ({}, {"choices": []}, [], None, {"choices": [{"message": "x"}]}):
        with pytest.raises(NotAnAnswer):
            parse(broken)


def test_the_key_is_of_all_that_an_answer_depends_on() -> None:
    body = {"messages": [], "seed": 1}
    assert key_of("a", body) == key_of("a", {"seed": 1, "messages": []})
    assert len({key_of("a", body), key_of("b", body), key_of("a", {**body, "seed": 2})}) == 3
