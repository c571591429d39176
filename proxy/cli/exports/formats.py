"""Examples as the files of other trainers: TRL, OpenAI's fine-tuning, ShareGPT.

Owns the members of each format. Sources: TRL 1.16, docs/source/dataset_formats.md and its trainers; OpenAI's reference
of the chat format for fine-tuning, April 2026; LLaMA-Factory, data/README.md, for ShareGPT with tools. Not here: which
completions are examples (examples).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import orjson

from proxy.cli.exports import examples, pairs
from proxy.cli.exports.examples import Example, Message, NotAnExample
from proxy.dialects.chat_turns import in_turns

Format = Literal["trl-sft", "trl-kto", "trl-dpo", "openai", "sharegpt"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
Row = dict[str, Any]
Read = Callable[[], Iterable[Mapping[str, Any]]]

DISLIKED: Final = "disliked, without a correction to learn from"
OUT_OF_TURN: Final = "whose turns do not alternate, as this format demands"
WORDS_AND_CALL: Final = "with words and a tool call in one message, for which this format has no place"
NO_TOOL: Final = "with the result of a tool that nobody called"


class TrainingFile:
    """Rows of one format out of an export's lines, and the number of completions left out for each reason."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self.left_out: Counter[str] = Counter()

    def rows(self, read: Read) -> Iterator[Row]:
        """`read` begins to read the export's lines; pairs are read twice."""
        if self._format == "trl-dpo":
            groups = pairs.rated_differently(self._examples(read(), with_count=False))
            for pair in pairs.pairs(self._examples(read()), groups, self._leave_out):
                shared = {"prompt": _trl(pair.example.prompt), "tools": _schemas(pair.example)}
                yield shared | {"chosen": _trl([pair.chosen]), "rejected": _trl([pair.rejected])}
            return
        make = _MAKERS[self._format]
        for example in self._examples(read()):
            try:
                yield from make(example)
            except NotAnExample as reason:
                self._leave_out(str(reason))

    def _examples(self, lines: Iterable[Mapping[str, Any]], *, with_count: bool = True) -> Iterator[Example]:
        for line in lines:
            try:
                yield examples.read(line)
            except NotAnExample as reason:
                if with_count:
                    self._leave_out(str(reason))

    def _leave_out(self, reason: str) -> None:
        self.left_out[reason] += 1


# TRL


def _trl_sft(example: Example) -> Iterator[Row]:
    """The reply alone is learned: prompt and completion, not `messages`."""
    yield {**_prompt(example), "completion": _trl([_liked(example)])}


def _trl_kto(example: Example) -> Iterator[Row]:
    yield {**_prompt(example), "completion": _trl([example.reply]), "label": example.good}
    if example.correction is not None:
        yield {**_prompt(example), "completion": _trl([example.correction]), "label": True}


def _prompt(example: Example) -> Row:
    return {"prompt": _trl(example.prompt), "tools": _schemas(example)}


def _trl(messages: Sequence[Message]) -> list[Message]:
    """Arguments stay values: chat templates write them as JSON. No ids, which no template shows."""
    return [
        {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        | ({"tool_calls": [_call(call) for call in calls]} if (calls := message.get("tool_calls")) else {})
        for message in messages
    ]


def _call(call: Mapping[str, Any]) -> Row:
    return {"type": "function", "function": {"name": _name(call), "arguments": call["function"].get("arguments")}}


def _schemas(example: Example) -> str | None:
    """One JSON text: in an Arrow column, schemas of several tools would get each other's members."""
    return orjson.dumps(example.tools).decode() if example.tools else None


# OpenAI


def _openai(example: Example) -> Iterator[Row]:
    """Only the last reply is learned: those before it have weight 0."""
    messages = [*example.prompt, _liked(example)]
    rows = _with_call_ids([{k: v for k, v in message.items() if k != "reasoning_content"} for message in messages])
    for row in rows:
        if row["role"] == "assistant":
            row["weight"] = 0
    rows[-1]["weight"] = 1
    yield {"messages": rows, **({"tools": example.tools} if example.tools else {})}


def _with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Each call with an id and its arguments as text, each result with the id of its call."""
    waiting: list[str] = []
    rows = []
    for index, message in enumerate(messages):
        row = dict(message)
        if calls := message.get("tool_calls"):
            row["tool_calls"] = [
                {
                    "id": call.get("id") or f"call_{index}_{place}",
                    "type": "function",
                    "function": {"name": _name(call), "arguments": _as_text(call["function"].get("arguments"))},
                }
                for place, call in enumerate(calls)
            ]
            row["content"] = row["content"] or None
            waiting = [call["id"] for call in row["tool_calls"]]
        elif message["role"] == "tool":
            id = message.get("tool_call_id") or next(iter(waiting), None)
            if id not in waiting:
                raise NotAnExample(NO_TOOL)
            waiting.remove(id)
            row["tool_call_id"] = id
            row.pop("name", None)
        rows.append(row)
    return rows


# ShareGPT


_SPEAKERS: Final = {"user": "human", "tool": "observation", "assistant": "gpt", "system": "system"}


def _sharegpt(example: Example) -> Iterator[Row]:
    turns: list[dict[str, str]] = []
    for message in in_turns([*example.prompt, _liked(example)]):
        speaker, text = _SPEAKERS.get(message["role"], ""), message.get("content") or ""
        if calls := message.get("tool_calls"):
            if text.strip():
                raise NotAnExample(WORDS_AND_CALL)
            called = [{"name": _name(call), "arguments": call["function"].get("arguments")} for call in calls]
            speaker, text = "function_call", _as_text(called[0] if len(called) == 1 else called)
        if speaker == "observation" and turns and turns[-1]["from"] == speaker:  # results of calls made at once
            turns[-1]["value"] += f"\n{text}"
        else:
            turns.append({"from": speaker, "value": text})
    talk = turns[1:] if turns[0]["from"] == "system" else turns
    if not all(
        turn["from"] in (("human", "observation"), ("gpt", "function_call"))[i % 2] for i, turn in enumerate(talk)
    ):
        raise NotAnExample(OUT_OF_TURN)
    tools = [tool.get("function") for tool in example.tools or ()]
    yield {"id": example.id, "conversations": turns, **({"tools": _as_text(tools)} if tools else {})}


# All


_MAKERS: Final[Mapping[str, Callable[[Example], Iterator[Row]]]] = {
    "trl-sft": _trl_sft, "trl-kto": _trl_kto, "openai": _openai, "sharegpt": _sharegpt,
}  # fmt: skip


def _liked(example: Example) -> Message:
    """The message to imitate. Raises NotAnExample."""
    if example.good:
        return example.reply
    if example.correction is None:
        raise NotAnExample(DISLIKED)
    return example.correction


def _name(call: Mapping[str, Any]) -> str:
    return str(call["function"].get("name"))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
