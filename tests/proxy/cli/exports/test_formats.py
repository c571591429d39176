"""Files for other trainers: the members of each format, what becomes of tools, and the reason of what is left out."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.exports import examples, formats, pairs
from proxy.cli.exports.formats import FORMATS, TrainingFile
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy

TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
CALL = {"type": "function", "id": "c1", "function": {"name": "look", "arguments": {"at": "sky", "times": 2}}}
ids = itertools.count()


def rated(value: float, **members: Any) -> dict[str, Any]:
    return {"value": value, "weight": 1.0, "human": True, "correction": None, **members}


def line(text: str, *ratings: dict[str, Any], messages: list[dict[str, Any]] | None = None, **members: Any) -> Any:
    """A line of an export, of what these formats read."""
    reply = {"role": "assistant", "content": text}
    messages = messages or [{"role": "user", "content": "Hi"}]
    return {
        "id": f"rl-{next(ids)}", "status": "done", "dialect": "chat", "translated": False, "untrainable": None,
        "request": {}, "messages": messages, "reply": reply, "text": text, "ratings": list(ratings), **members,
    }  # fmt: skip


def called(value: float = 1.0) -> Any:
    """An answer after a tool was called."""
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "blue", "tool_call_id": "c1"},
    ]
    return line("It is blue.", rated(value), messages=messages, request={"tools": [TOOL]})


def written(format: Any, *lines: Any) -> tuple[list[Any], dict[str, int]]:
    """What a file of this format would hold, as it would be read again, and what was left out."""
    file = TrainingFile(format)
    rows = [json.loads(json.dumps(row)) for row in file.rows(lambda: iter(lines))]
    return rows, dict(file.left_out)


def test_what_is_liked_is_imitated_and_a_correction_in_the_place_of_what_it_corrects() -> None:
    rows, left_out = written(
        "trl-sft", line("good", rated(1.0)), line("bad", rated(-1.0)), line("so so", rated(-0.5, correction="better"))
    )
    assert [row["completion"] for row in rows] == [
        [{"role": "assistant", "content": "good"}], [{"role": "assistant", "content": "better"}],
    ]  # fmt: skip
    assert rows[0]["prompt"] == [{"role": "user", "content": "Hi"}] and left_out == {formats.DISLIKED: 1}


def test_kto_takes_both_sides_and_the_correction_as_liked() -> None:
    rows, left_out = written("trl-kto", line("good", rated(0.5)), line("bad", rated(-1.0, correction="better")))
    assert [(row["completion"][0]["content"], row["label"]) for row in rows] == [
        ("good", True), ("bad", False), ("better", True),
    ]  # fmt: skip
    assert left_out == {}


def test_people_outvote_by_weight_and_programs_are_not_heard() -> None:
    judge = rated(-1.0, human=False, weight=10.0)
    rows, left_out = written(
        "trl-kto",
        line("a", rated(1.0, weight=3.0), rated(-1.0), judge),
        line("b", rated(1.0), rated(-1.0)),
        line("c", judge),
    )
    assert [row["label"] for row in rows] == [True]
    assert left_out == {examples.NO_OPINION: 1, examples.PROGRAMS_ONLY: 1}


def test_pairs_are_the_best_with_the_worst_and_each_correction_with_its_reply() -> None:
    other = [{"role": "user", "content": "Bye"}]
    rows, left_out = written(
        "trl-dpo",
        line("best", rated(1.0)), line("alone", rated(1.0), messages=other), line("worst", rated(-1.0)),
        line("good", rated(0.5)), line("bad", rated(-0.5)), line("wrong", rated(-1.0, correction="right")),
        line("middle", rated(0.25)),
    )  # fmt: skip
    assert {(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows} == {
        ("best", "worst"), ("good", "bad"), ("right", "wrong"),
    }  # fmt: skip
    assert left_out == {pairs.WITHOUT_PAIR: 2}


def test_replies_to_a_prompt_with_other_tools_are_no_pair() -> None:
    rows, left_out = written("trl-dpo", line("a", rated(1.0)), line("b", rated(-1.0), request={"tools": [TOOL]}))
    assert rows == [] and left_out == {pairs.WITHOUT_PAIR: 2}


def test_what_goes_between_the_two_readings_is_counted() -> None:
    good, bad = line("a", rated(1.0)), line("b", rated(-1.0))
    file, readings = TrainingFile("trl-dpo"), iter([[good, bad], [good]])
    assert list(file.rows(lambda: next(readings))) == [] and dict(file.left_out) == {pairs.CHANGED: 1}


def test_trl_gets_arguments_as_values_and_schemas_as_json() -> None:
    for format in ("trl-sft", "trl-kto"):
        ((row,), _) = written(format, called())
        assert json.loads(row["tools"]) == [TOOL]
        assert [message["role"] for message in row["prompt"]] == ["system", "user", "assistant", "tool"]
        assert row["prompt"][1]["content"] == "Look"
        (call,) = row["prompt"][2]["tool_calls"]
        assert call["function"] == {"name": "look", "arguments": {"at": "sky", "times": 2}}


def test_openai_learns_the_last_reply_only_and_every_result_has_its_call() -> None:
    ((row,), _) = written("openai", called())
    assert set(row) == {"messages", "tools"} and row["tools"] == [TOOL]
    call, result, last = row["messages"][2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "c1" and call["weight"] == 0
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == CALL["function"]["arguments"]
    assert last == {"role": "assistant", "content": "It is blue.", "weight": 1}


def test_openai_calls_without_ids_get_some() -> None:
    without = {key: value for key, value in CALL.items() if key != "id"}
    messages = [
        {"role": "user", "content": "Look twice"},
        {"role": "assistant", "content": "", "tool_calls": [without, without]},
        {"role": "tool", "content": "blue"},
        {"role": "tool", "content": "grey"},
    ]
    ((row,), _) = written("openai", line("Blue, then grey.", rated(1.0), messages=messages))
    call_ids = [call["id"] for call in row["messages"][1]["tool_calls"]]
    assert len(set(call_ids)) == 2 and [message["tool_call_id"] for message in row["messages"][2:4]] == call_ids
    lost = [*messages[:1], messages[2]]
    assert written("openai", line("Blue.", rated(1.0), messages=lost)) == ([], {formats.NO_TOOL: 1})


def test_sharegpt_names_its_speakers_and_its_tools() -> None:
    ((row,), _) = written("sharegpt", called())
    assert [turn["from"] for turn in row["conversations"]] == ["system", "human", "function_call", "observation", "gpt"]
    assert json.loads(row["conversations"][2]["value"]) == CALL["function"]
    assert json.loads(row["tools"]) == [TOOL["function"]]
    assert set(written("sharegpt", line("a", rated(1.0)))[0][0]) == {"id", "conversations"}


def test_sharegpt_has_no_place_for_words_beside_a_call_nor_for_a_talk_that_begins_with_the_model() -> None:
    words = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": "I do", "tool_calls": [CALL]},
             {"role": "tool", "content": "blue", "tool_call_id": "c1"}]  # fmt: skip
    greeted = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Hi"}]
    rows, left_out = written("sharegpt", line("a", rated(1.0), messages=words), line("b", rated(1.0), messages=greeted))
    assert rows == [] and left_out == {formats.WORDS_AND_CALL: 1, formats.OUT_OF_TURN: 1}


@pytest.mark.parametrize("format", FORMATS)
def test_what_no_trainer_can_use_is_left_out_with_its_reason(format: Any) -> None:
    good = rated(1.0)
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    rows, left_out = written(
        format,
        line("a", good, status="partial"),
        line("a", good, untrainable="redacted"),
        line("a", good, untrainable="prompt_embeds"),
        line("a", good, dialect="completions"),
        line("a", good, messages=picture),
        line("", good),
        line("a"),
    )
    assert rows == [] and left_out == {
        examples.UNFINISHED: 1, examples.REDACTED: 1, f"{examples.UNTRAINABLE} (prompt_embeds)": 1, examples.PLAIN: 1,
        examples.MEDIA: 1, examples.SILENT: 1, examples.UNRATED: 1,
    }  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
async def test_the_command_writes_nothing_forgotten_nor_taken_back(cli: Proxy, tmp_path: Path, format: str) -> None:
    completions = {}
    for text, rating in (("kept", "good"), ("kept", "bad"), ("gone", "good"), ("undone", "good")):
        answer = await cli.chat(text, n=1, tools=[TOOL], tool_choice="none")
        completions[text, rating] = answer.headers["x-rl-completion-id"]
        body = {"correction": "kept better"} if rating == "bad" else {}
        await cli.rate(completion_id=completions[text, rating], rating=rating, **body)
    assert (await rlproxy(cli.home, "undo"))[0] == 0
    assert (await rlproxy(cli.home, "forget", "completion", completions["gone", "good"], "--yes"))[0] == 0
    target = tmp_path / "out.jsonl"
    code, _, err = await rlproxy(cli.home, "export", "--format", format, "-o", str(target))
    rows = [json.loads(row) for row in target.read_text().splitlines()]
    assert code == 0 and len(rows) == {"trl-kto": 3, "trl-dpo": 1}.get(format, 2)
    assert f"{len(rows)} example" in err and "gone" not in target.read_text() and "undone" not in target.read_text()
    assert "look" in target.read_text() and (target.stat().st_mode & 0o777) == 0o600


@pytest.mark.parametrize("format", FORMATS)
def test_rows_come_while_the_export_is_read(format: Any) -> None:
    """An export without an end: what is held of it does not grow with it."""

    def endless(prompt: int = 0) -> Any:
        while True:
            messages = [{"role": "user", "content": f"prompt {prompt}"}]
            yield line("a", rated(1.0), messages=messages)
            yield line("b", rated(-1.0), messages=messages)
            prompt += 1

    readings = iter([itertools.islice(endless(), 2000), endless()]) if format == "trl-dpo" else iter([endless()])
    rows = list(itertools.islice(TrainingFile(format).rows(lambda: next(readings)), 1000))
    assert len(rows) == 1000


async def test_a_format_that_is_not_one(cli: Proxy) -> None:
    code, out, err = await rlproxy(cli.home, "export", "--format", "alpaca")
    assert code == 2 and out == "" and "trl-sft, trl-kto" in err
