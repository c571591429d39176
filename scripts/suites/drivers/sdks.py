"""Calls of the Python SDKs of OpenAI, Anthropic and Ollama, with strict types.

`python sdks.py URL MODEL` prints a JSON object: for each call "passed", or why it failed. A call passes where the SDK,
told to validate what it reads, takes the answer, and where the answer has what was asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import ollama
import openai
import pydantic

URL, MODEL = sys.argv[1], sys.argv[2]
SAY = [{"role": "user", "content": "Say hello."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FUNCTION = {"name": "add", "description": "Adds two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    "additionalProperties": False}}  # fmt: skip
TOOL = {"type": "function", "function": FUNCTION}
PERSON = [{"role": "user", "content": "Ann is 7 years old. Who is she, as JSON?"}]
SUM = [{"role": "user", "content": "Add 2 and 3 with the tool."}]
CALLS: dict[str, Callable[[], Any]] = {}


class Person(pydantic.BaseModel):
    name: str
    age: int


oai = openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0, timeout=120, _strict_response_validation=True)
claude = anthropic.Anthropic(base_url=URL, api_key="any", max_retries=0, timeout=120, _strict_response_validation=True)
llama = ollama.Client(host=URL, timeout=120)


def call(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(function: Callable[[], Any]) -> Callable[[], Any]:
        CALLS[name] = function
        return function

    return keep


def _chat(**members: Any) -> Any:
    return oai.chat.completions.create(**{"model": MODEL, "messages": SAY, "max_tokens": 24, **members})


def _chunks(**members: Any) -> list[Any]:
    return list(_chat(stream=True, **members))


def _fits(text: str) -> None:
    Person.model_validate_json(text, strict=True)


def _names(names: list[str], wanted: str = "add") -> None:
    assert names == [wanted], names


def _refused(function: Callable[[], Any], *kinds: type[Exception]) -> None:
    """The server refuses, in the form that the SDK knows."""
    try:
        function()
    except kinds as error:
        if not isinstance(error.body, dict) or not error.message:
            raise AssertionError(f"not an error of the API: {error.body}") from error
    else:
        raise AssertionError("it was taken")


# Chat completions

call("chat: whole")(lambda: _chat().choices[0].message.content.strip()[0])
call("chat: stream")(lambda: _chunks()[-1].choices[0].finish_reason[0])
call("chat: usage at the end")(lambda: _chunks(stream_options={"include_usage": True})[-1].usage.total_tokens + 0)
call("chat: logprobs")(
    lambda: bytes(_chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content[0].top_logprobs[1].bytes)
)
call("chat: logprobs, stream")(lambda: next(c for c in _chunks(logprobs=True) if c.choices[0].logprobs))
call("chat: n")(lambda: _chat(n=2, temperature=1).choices[1].message.content[0])
call("chat: stop")(lambda: _chat(stop=["ello", "i"]).choices[0].finish_reason[0])
call("chat: penalties")(lambda: _chat(presence_penalty=0.5, frequency_penalty=0.5).choices[0].message.content[0])
call("chat: seed")(lambda: _chat(seed=7, temperature=0.5, top_p=0.9).choices[0].message.content[0])
call("chat: system and history")(
    lambda: _chat(
        messages=[{"role": "system", "content": "Be brief."}, *SAY, {"role": "assistant", "content": "Hi"}, *SAY]
    )
)
call("chat: developer")(lambda: _chat(messages=[{"role": "developer", "content": "Be brief."}, *SAY]))
call("chat: parts")(lambda: _chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]))


@call("chat: cut")
def _() -> None:
    assert _chat(max_tokens=1).choices[0].finish_reason == "length"


@call("chat: max_completion_tokens")
def _() -> None:
    answer = oai.chat.completions.create(model=MODEL, messages=SAY, max_completion_tokens=1)
    assert answer.usage.completion_tokens == 1 and answer.choices[0].finish_reason == "length"


@call("chat: bytes of a character")
def _() -> None:
    answer = _chat(messages=[{"role": "user", "content": "Repeat: 👩‍🚀 é"}], logprobs=True).choices[0]
    spelled = b"".join(bytes(entry.bytes) for entry in answer.logprobs.content)
    assert (answer.message.content or "") in spelled.decode("utf-8", "replace")


@call("chat: named tool")
def _() -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    calls = _chat(messages=SUM, tools=[TOOL], tool_choice=choice, max_tokens=96).choices[0].message.tool_calls
    _names([call.function.name for call in calls])
    assert json.loads(calls[0].function.arguments).keys() == {"a", "b"}


@call("chat: required tool")
def _() -> None:
    answer = _chat(messages=SUM, tools=[TOOL], tool_choice="required", max_tokens=96).choices[0]
    _names([call.function.name for call in answer.message.tool_calls])


@call("chat: required tool, stream")
def _() -> None:
    chunks = _chunks(messages=SUM, tools=[TOOL], tool_choice="required", max_tokens=96)
    pieces = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    _names([piece.function.name for piece in pieces if piece.function.name])
    assert json.loads("".join(piece.function.arguments or "" for piece in pieces)).keys() == {"a", "b"}


@call("chat: no tool")
def _() -> None:
    assert not _chat(messages=SUM, tools=[TOOL], tool_choice="none").choices[0].message.tool_calls


@call("chat: tool result")
def _() -> None:
    made = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    turn = [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    assert _chat(messages=[*SUM, *turn], tools=[TOOL]).choices[0].message


@call("chat: JSON object")
def _() -> None:
    answer = _chat(messages=PERSON, response_format={"type": "json_object"}, max_tokens=96)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@call("chat: JSON schema")
def _() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    _fits(_chat(messages=PERSON, response_format=form, max_tokens=96).choices[0].message.content)


@call("chat: JSON schema, stream")
def _() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    chunks = _chunks(messages=PERSON, response_format=form, max_tokens=96)
    _fits("".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices))


@call("chat: parse")
def _() -> None:
    answer = oai.chat.completions.parse(model=MODEL, messages=PERSON, response_format=Person, max_tokens=96)
    assert isinstance(answer.choices[0].message.parsed, Person)


@call("chat: parsed stream")
def _() -> None:
    with oai.chat.completions.stream(model=MODEL, messages=PERSON, response_format=Person, max_tokens=96) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


call("chat: odd temperature")(lambda: _refused(lambda: _chat(temperature=9), openai.BadRequestError))
call("chat: odd messages")(lambda: _refused(lambda: _chat(messages=3), openai.BadRequestError))
call("chat: odd tool_choice")(
    lambda: _refused(
        lambda: _chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}}), openai.BadRequestError
    )
)
call("models")(lambda: next(model.id for model in oai.models.list()))
call("model")(lambda: oai.models.retrieve(next(model.id for model in oai.models.list())).id[0])
call("completions: whole")(lambda: oai.completions.create(model=MODEL, prompt="Hello", max_tokens=8).choices[0].text)
call("completions: stream")(
    lambda: list(oai.completions.create(model=MODEL, prompt="Hello", max_tokens=8, stream=True))[-1].choices[0]
)
call("completions: logprobs")(
    lambda: oai.completions.create(model=MODEL, prompt="Hi", max_tokens=4, logprobs=1).choices[0].logprobs.tokens[0]
)

# Responses


def _response(**members: Any) -> Any:
    return oai.responses.create(**{"model": MODEL, "input": "Say hello.", "max_output_tokens": 24, **members})


call("responses: whole")(lambda: _response().output_text[0])
call("responses: instructions")(lambda: _response(instructions="Be brief.").output_text[0])
call("responses: items")(lambda: _response(input=SAY).output[0].content[0].text[0])
call("responses: logprobs")(
    lambda: (
        _response(include=["message.output_text.logprobs"], top_logprobs=2).output[0].content[0].logprobs[0].bytes[0]
    )
)


@call("responses: stream")
def _() -> None:
    events = list(_response(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type in ("response.completed", "response.incomplete"), events[-1].type


@call("responses: cut")
def _() -> None:
    answer = _response(max_output_tokens=1)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"


@call("responses: retrieve")
def _() -> None:
    answer = _response()
    assert oai.responses.retrieve(answer.id).output_text == answer.output_text


@call("responses: retrieve, stream")
def _() -> None:
    events = list(oai.responses.retrieve(_response().id, stream=True))
    assert events and events[-1].type in ("response.completed", "response.incomplete")


call("responses: input items")(lambda: next(iter(oai.responses.input_items.list(_response().id))).content[0].text[0])


@call("responses: go on")
def _() -> None:
    assert _response(previous_response_id=_response().id, input="Again.").previous_response_id


@call("responses: required tool")
def _() -> None:
    answer = _response(
        input=SUM, tools=[{"type": "function", **FUNCTION}], tool_choice="required", max_output_tokens=96
    )
    _names([item.name for item in answer.output if item.type == "function_call"])


@call("responses: JSON schema")
def _() -> None:
    form = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}
    _fits(_response(input=PERSON, text=form, max_output_tokens=96).output_text)


@call("responses: parse")
def _() -> None:
    answer = oai.responses.parse(model=MODEL, input=PERSON, text_format=Person, max_output_tokens=96)
    assert isinstance(answer.output_parsed, Person)


@call("responses: delete")
def _() -> None:
    id = _response().id
    oai.responses.delete(id)
    _refused(lambda: oai.responses.retrieve(id), openai.NotFoundError)


call("responses: unknown previous")(
    lambda: _refused(lambda: _response(previous_response_id="resp_x"), openai.BadRequestError, openai.NotFoundError)
)

# Messages


def _message(**members: Any) -> Any:
    return claude.messages.create(**{"model": MODEL, "messages": SAY, "max_tokens": 24, **members})


CLAUDE_TOOL = {"name": "add", "description": "Adds.", "input_schema": FUNCTION["parameters"]}
call("messages: whole")(lambda: _message().content[0].text[0])
call("messages: system")(lambda: _message(system="Be brief.").content[0].text[0])
call("messages: blocks")(
    lambda: _message(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]).content[0].text[0]
)
call("messages: stop")(lambda: _message(stop_sequences=["ello", "i"]).stop_reason[0])
call("messages: count tokens")(lambda: claude.messages.count_tokens(model=MODEL, messages=SAY).input_tokens + 0)
call("messages: models")(lambda: next(model.id for model in claude.models.list()))


@call("messages: model")
def _() -> None:
    model = next(iter(claude.models.list()))
    assert claude.models.retrieve(model.id).type == "model"


@call("messages: cut")
def _() -> None:
    answer = _message(max_tokens=1)
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 1


@call("messages: raw stream")
def _() -> None:
    events = list(_message(stream=True))
    assert events[0].type == "message_start" and events[-1].type == "message_stop"


@call("messages: stream")
def _() -> None:
    with claude.messages.stream(model=MODEL, messages=SAY, max_tokens=24) as stream:
        assert stream.get_final_message().usage.input_tokens


@call("messages: named tool")
def _() -> None:
    choice = {"type": "tool", "name": "add"}
    answer = _message(messages=SUM, tools=[CLAUDE_TOOL], tool_choice=choice, max_tokens=96)
    _names([block.name for block in answer.content if block.type == "tool_use"])


@call("messages: any tool")
def _() -> None:
    answer = _message(messages=SUM, tools=[CLAUDE_TOOL], tool_choice={"type": "any"}, max_tokens=96)
    _names([block.name for block in answer.content if block.type == "tool_use"])


@call("messages: tool result")
def _() -> None:
    turn = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2, "b": 3}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "5"}]},
    ]
    assert _message(messages=[*SUM, *turn], tools=[CLAUDE_TOOL]).type == "message"


@call("messages: JSON schema")
def _() -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    _fits(_message(messages=PERSON, output_config=form, max_tokens=96).content[0].text)


call("messages: odd messages")(lambda: _refused(lambda: _message(messages=3), anthropic.BadRequestError))

# Ollama

call("ollama: chat")(lambda: llama.chat(MODEL, messages=SAY, options={"num_predict": 24}).message.content[0])
call("ollama: generate")(lambda: llama.generate(MODEL, prompt="Say hello.", options={"num_predict": 24}).response[0])
call("ollama: logprobs")(
    lambda: (
        llama.chat(MODEL, messages=SAY, logprobs=True, top_logprobs=2, options={"num_predict": 4}).logprobs[0].token[0]
    )
)
call("ollama: list")(lambda: llama.list().models[0].model[0])
call("ollama: ps")(lambda: llama.ps().models[0].model[0])
call("ollama: show")(lambda: llama.show(llama.list().models[0].model).capabilities[0])
call("ollama: load")(lambda: llama.generate(MODEL, prompt="").done or _none())


def _none() -> None:
    raise AssertionError("nothing came")


@call("ollama: stream")
def _() -> None:
    lines = list(llama.chat(MODEL, messages=SAY, stream=True, options={"num_predict": 24}))
    assert lines[-1].done and lines[-1].eval_count and "".join(line.message.content or "" for line in lines)


@call("ollama: JSON schema")
def _() -> None:
    _fits(llama.chat(MODEL, messages=PERSON, format=SCHEMA, options={"num_predict": 96}).message.content)


@call("ollama: tools")
def _() -> None:
    assert llama.chat(MODEL, messages=SUM, tools=[TOOL], options={"num_predict": 48}).done


def outcomes(calls: dict[str, Callable[[], Any]]) -> Iterator[tuple[str, str]]:
    for name, function in calls.items():
        try:
            function()
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"[:300]
        else:
            yield name, "passed"


if __name__ == "__main__":
    print(json.dumps(dict(outcomes(CALLS)), ensure_ascii=False))
