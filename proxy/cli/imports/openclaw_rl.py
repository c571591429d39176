"""`rlproxy import openclaw-rl`: turns that OpenClaw-RL recorded, as lines of an export.

Owns what its files hold (Gen-Verse/OpenClaw-RL 0d034dd, openclaw-rl/openclaw_api_server.py: `_buffer_record`,
`_flush_pending_record`, `_append_prm_record`). OPENCLAW_RECORD_FILE has a line for each main turn: session_id, turn,
timestamp, messages, prompt_text, response_text, tool_calls, next_state. Scores by its judge model are in a second file.
`turn_type` and `trainable` are read where a line has them. `prompt_text` is left out, as the server's own rendering of
`messages`. So is `next_state`: the next turn has it as its last message. Not here: what is stored
(proxy.web.importing).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from proxy.cli.imports.export_file import LONGEST, UnreadableFile

FORMAT: Final = 1  # of an export's line
NAME: Final = "openclaw-rl"
RATER: Final = "judge:openclaw-rl"
JUDGE_WEIGHT: Final = 0.5  # where a person's rating weighs 1
NO_SESSION: Final = "unknown"  # what its server calls a request without one
UNTRAINABLE: Final = "OpenClaw-RL marked it as not trainable"
NO_NUMBERS: Final = "OpenClaw-RL records neither token ids nor log-probs"


class RecordedTurn(NamedTuple):
    session: str
    number: int


def lines(records: Path, scores: Path | None) -> Iterator[bytes]:
    """Lines of an export, in the order of the file. Raises UnreadableFile, after what came before."""
    values = {} if scores is None else _scores(scores)
    for number, record in _rows(records):
        try:
            line = _line(record, values)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableFile(
                f"line {number} of {records} is not a turn that OpenClaw-RL records ({type(error).__name__}: {error}); "
                "what came before is taken."
            ) from None
        yield json.dumps(line, ensure_ascii=True).encode() + b"\n"


def _line(record: Mapping[str, Any], scores: Mapping[RecordedTurn, float]) -> dict[str, Any]:
    """Raises KeyError, TypeError, ValueError."""
    session, messages, text = str(record["session_id"]), record["messages"], record["response_text"]
    if not isinstance(messages, list) or not isinstance(text, str):
        raise TypeError("`messages` is a list and `response_text` a text")
    turn = RecordedTurn(session, int(record["turn"]))
    moment = time.mktime(time.strptime(record["timestamp"], "%Y-%m-%d %H:%M:%S"))  # it writes local time
    identity = json.dumps([*turn, record["timestamp"], messages, text], sort_keys=True)
    id = f"rl-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
    reply = {"role": "assistant", "content": text}
    if record.get("tool_calls"):
        reply["tool_calls"] = record["tool_calls"]
    return {
        "format": FORMAT, "id": id, "request_id": id, "choice": 0, "status": "done", "created_at": moment,
        "finished_at": moment, "dialect": "chat", "backend": NAME, "model": NAME, "served_model": NAME, "version": None,
        "session": None if session == NO_SESSION else session, "user": None,
        "turn": "main" if record.get("turn_type", "main") == "main" else "side", "sampling": {}, "request": {},
        "messages": messages, "reply": reply, "text": text, "exact": False, "inexact_reason": NO_NUMBERS,
        "untrainable": UNTRAINABLE if record.get("trainable") is False else None,
        "ratings": _ratings(id, moment, scores.get(turn)),
    }  # fmt: skip


def _ratings(id: str, moment: float, score: float | None) -> list[dict[str, Any]]:
    """Its judge's score as a rating that is not a person's. 0 says nothing."""
    if not score:
        return []
    return [
        {
            "id": f"rt-{id.removeprefix('rl-')}", "rater": RATER, "value": max(-1.0, min(1.0, score)), "weight":
            JUDGE_WEIGHT, "source": NAME, "scale": "unit", "human": False, "created_at": moment,
        }
    ]  # fmt: skip


def _scores(file: Path) -> dict[RecordedTurn, float]:
    """The score of each turn. Raises UnreadableFile."""
    values = {}
    for number, row in _rows(file):
        try:
            values[RecordedTurn(str(row["session_id"]), int(row["turn"]))] = float(row["score"])
        except (KeyError, TypeError, ValueError):
            raise UnreadableFile(f"line {number} of {file} is not a score of OpenClaw-RL; nothing was taken.") from None
    return values


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a file of JSON lines, with the numbers of their lines. Raises UnreadableFile."""
    try:
        with file.open("rb") as opened:
            for number, raw in enumerate(_bounded(opened), start=1):
                if not raw.strip():
                    continue
                row = json.loads(raw)
                if not isinstance(row, dict):
                    raise UnreadableFile(f"line {number} of {file} is not an object; what came before is taken.")
                yield number, row
    except OSError as error:
        raise UnreadableFile(f"{file} cannot be read ({error.strerror}); nothing was taken.") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{file} has a line that is not JSON ({error}); what came before is taken.") from None


def _bounded(opened: Any) -> Iterable[bytes]:
    return iter(lambda: opened.readline(LONGEST), b"")
