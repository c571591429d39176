"""Each kind of check, on answers that hold and answers that do not; a reason never quotes the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.checks.answers import CheckedAnswer, ToolCall
from proxy.checks.checks_file import ChecksError, Suite, read
from proxy.checks.criteria import Criteria, CriterionVerdict
from proxy.signals.judge import JudgeDown
from tests.proxy.checks.test_checks_file import SOUND, written


def suite_of(folder: Path, check: str) -> Suite:
    return read(written(folder, SOUND.partition("[[check]]")[0] + f"[[check]]\nname = 'c'\n{check}\n"))


async def verdict(suite: Suite, answer: CheckedAnswer, ask_judge: Any = None) -> CriterionVerdict:
    criteria = Criteria(suite, ask_judge)
    try:
        return await criteria.verdict(suite.check[0], suite.prompt[0], answer)
    finally:
        await criteria.stop()


@pytest.mark.parametrize(
    ("check", "text", "ok", "reason"),
    [
        ("kind='regex'\npattern='(?i)sorry'", "I am SORRY", True, ""),
        ("kind='regex'\npattern='sorry'", "fine", False, "does not have 'sorry'"),
        ("kind='regex'\npattern='sorry'\nabsent=true", "sorry", False, "has 'sorry'"),
        ("kind='regex'\npattern='sorry'\nabsent=true", "fine", True, ""),
        ("kind='length'\nmax_words=3", "one two three", True, ""),
        ("kind='length'\nmax_words=3", "one two three four", False, "has 4 words, more than 3"),
        ("kind='length'\nmin_words=2", "one", False, "has 1 words, fewer than 2"),
        ("kind='length'\nmin_characters=2\nmax_characters=4", "12345", False, "has 5 characters, more than 4"),
        ("kind='tool'\ncalls=''", "no call", True, ""),
        ("kind='tool'\ncalls='get_weather'", "no call", False, "does not call get_weather"),
    ],
)
async def test_kinds_that_read_text(tmp_path: Path, check: str, text: str, ok: bool, reason: str) -> None:
    assert await verdict(suite_of(tmp_path, check), CheckedAnswer(text)) == CriterionVerdict(ok, reason)


async def test_a_call_that_must_not_be_there(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "kind='tool'\ncalls=''")
    assert await verdict(suite, CheckedAnswer("", (ToolCall("rm", {}),))) == CriterionVerdict(False, "calls rm")
    suite = suite_of(tmp_path, "kind='tool'\ncalls='ls'")
    assert (await verdict(suite, CheckedAnswer("", (ToolCall("rm", {}),)))).reason == "does not call ls, but rm"
    assert (await verdict(suite, CheckedAnswer("", (ToolCall("rm", {}), ToolCall("ls", "not JSON"))))).ok


async def test_json_schemas(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    suite = suite_of(tmp_path, "kind='schema'\n[check.schema]\ntype='object'\nrequired=['a']\n")
    assert (await verdict(suite, CheckedAnswer('{"a": 1}'))).ok
    assert (await verdict(suite, CheckedAnswer("Sure! {}"))) == CriterionVerdict(False, "is not JSON")
    assert (await verdict(suite, CheckedAnswer("{}"))) == CriterionVerdict(
        False, "breaks `required` of the schema at $"
    )
    suite = suite_of(tmp_path, "kind='tool'\ncalls='w'\narguments={type='object', required=['city']}")
    assert (await verdict(suite, CheckedAnswer("", (ToolCall("w", {"city": "Oslo"}),)))).ok
    assert "required" in (await verdict(suite, CheckedAnswer("", (ToolCall("w", {}),)))).reason
    assert (await verdict(suite, CheckedAnswer("", (ToolCall("w", "{"),)))).ok is False


async def test_a_schema_that_leads_to_a_network_is_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    suite = suite_of(tmp_path, "kind='schema'\nschema={'$ref'='https://example.com/x.json'}")
    result = await verdict(suite, CheckedAnswer("{}"))
    assert result.ok is None and "its schema cannot be applied" in result.reason


def test_a_schema_that_is_not_one(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    with pytest.raises(ChecksError, match="no valid JSON schema"):
        Criteria(suite_of(tmp_path, "kind='schema'\nschema={type='thing'}"))


def test_without_jsonschema_a_schema_is_refused_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema.exceptions", None)
    with pytest.raises(ChecksError, match=r"pip install 'rlproxy\[checks\]'"):
        Criteria(suite_of(tmp_path, "kind='schema'\nschema={type='object'}"))


OWN = """
def check(prompt, answer):
    if prompt["messages"][-1]["content"] != "Hello":
        raise ValueError(prompt)
    return {"yes": True, "no": False, "why": "is rude", "number": 3}[answer["text"]]
"""


async def test_the_users_own_function_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    suite = suite_of(tmp_path, "kind='python'\nfunction='mine.py:check'")
    assert (await verdict(suite, CheckedAnswer("yes"))) == CriterionVerdict(True)
    assert (await verdict(suite, CheckedAnswer("no"))).ok is False
    assert (await verdict(suite, CheckedAnswer("why"))) == CriterionVerdict(False, "is rude")
    assert (await verdict(suite, CheckedAnswer("number"))).ok is None
    failed = await verdict(suite, CheckedAnswer("other"))
    assert failed.ok is None and "KeyError" in failed.reason


async def test_a_judge_reads_the_criterion_as_data(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "kind='judge'\ncriterion='It is polite.'")
    sent: list[Mapping[str, str]] = []

    def saying(text: str) -> Any:
        async def ask(messages: Sequence[Mapping[str, str]]) -> str:
            sent.extend(messages)
            return text

        return ask

    assert (await verdict(suite, CheckedAnswer("Get out"), saying('{"holds": false, "because": "rude"}'))).ok is False
    assert json.loads(sent[1]["content"]) == {"request": "Hello", "reply": "Get out", "criterion": "It is polite."}
    assert (await verdict(suite, CheckedAnswer("x"), saying('I think {"holds": true}'))).ok is True
    assert (await verdict(suite, CheckedAnswer("x"), saying("maybe"))).ok is None

    async def down(messages: Sequence[Mapping[str, str]]) -> str:
        raise JudgeDown("http://x does not answer")

    assert (await verdict(suite, CheckedAnswer("x"), down)) == CriterionVerdict(None, "http://x does not answer")
    with pytest.raises(ChecksError, match="asks a judge, and there is none"):
        Criteria(suite)
