"""`rlproxy import openclaw-rl`: files as its server writes them (facts of openclaw_api_server.py, 0d034dd)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.imports.export_file import UnreadableFile, batched
from proxy.cli.imports.openclaw_rl import lines
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


def record(turn: int, said: list[str], response: str, **members: Any) -> dict[str, Any]:
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(said)]
    return {
        "session_id": "s1", "turn": turn, "timestamp": "2026-11-20 10:00:0" + str(turn), "messages": messages,
        "prompt_text": "<|im_start|>…", "response_text": response, "tool_calls": None, "next_state": None, **members,
    }  # fmt: skip


def written(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return file


TURNS = [
    record(1, ["Hi"], "Hello.", next_state={"role": "user", "content": "List files"}),
    record(2, ["Hi", "Hello.", "List files"], "", tool_calls=[CALL]),
    record(3, ["Title?"], "A title", turn_type="side", session_id="unknown"),
    record(4, ["Secret"], "No", trainable=False),
]


async def test_turns_are_completions_and_scores_a_judges_ratings(cli: Proxy, tmp_path: Path) -> None:
    file = written(tmp_path / "conversations.jsonl", TURNS)
    scored = [
        {"session_id": "s1", "turn": 1, "score": -1.0, "votes": [-1, -1, 0]},
        {"session_id": "s1", "turn": 2, "score": 0},
    ]
    scores = written(tmp_path / "conversations_prm.jsonl", scored)
    code, out, err = await rlproxy(cli.home, "import", "openclaw-rl", str(file), "--scores", str(scores))
    assert code == 0 and out.startswith("4 completions and 1 rating taken, 0 were here before"), out + err
    rows = {row["text"]: row for row in (await cli.get("/rl/completions"))["data"]}
    assert (rows["Hello."]["session"], rows["Hello."]["turn"], rows["Hello."]["exact"]) == ("s1", "main", False)
    assert (rows["A title"]["session"], rows["A title"]["turn"]) == (None, "side")
    assert rows["No"]["untrainable"] == "OpenClaw-RL marked it as not trainable"
    (rating,) = rows["Hello."]["ratings"]
    assert (rating["value"], rating["rater"]) == (-1.0, "judge:openclaw-rl")
    called = await cli.get(f"/rl/completions/{rows['']['id']}")
    assert called["prompt"][-1]["content"] == "List files" and called["finish_reason"] is None
    code, out, _ = await rlproxy(cli.home, "import", "openclaw-rl", str(file))
    assert code == 0 and out.startswith("0 completions and 0 ratings taken, 4 were here before")


async def test_without_scores_nothing_is_rated(cli: Proxy, tmp_path: Path) -> None:
    file = written(tmp_path / "c.jsonl", TURNS)
    assert (await rlproxy(cli.home, "import", "openclaw-rl", str(file)))[0] == 0
    assert not any(row["ratings"] for row in (await cli.get("/rl/completions"))["data"])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([TURNS[0], {"turn": 1}], "line 2 of"),
        ([TURNS[0], [1]], "is not an object"),
        ([TURNS[0], record(2, ["x"], "y", timestamp="yesterday")], "is not a turn that OpenClaw-RL records"),
        ([TURNS[0], record(2, ["x"], "y", messages="x")], "`messages` is a list"),
    ],
)
def test_what_came_before_a_bad_line_is_taken(tmp_path: Path, rows: list[Any], words: str) -> None:
    parts = batched(lines(written(tmp_path / "c.jsonl", rows), None))
    assert next(parts)[1].count(b"\n") == 1
    with pytest.raises(UnreadableFile) as raised:
        next(parts)
    assert words in str(raised.value)


async def test_wrong_use(cli: Proxy, tmp_path: Path) -> None:
    assert (await rlproxy(cli.home, "import", "openclaw-rl"))[0] == 2
    assert (await rlproxy(cli.home, "import", "x.jsonl", "--scores", "y"))[0] == 2
    code, _, err = await rlproxy(cli.home, "import", "openclaw-rl", str(tmp_path / "none"))
    assert code == 1 and "cannot be read" in err
