"""Which grammar a request means, and a call read back from its text, wherever the text is cut."""

import itertools
from types import SimpleNamespace

import pytest

from trainer.serve.constraints import SchemaPart
from trainer.serve.reply_forms import CallForm, CallReader, FormError, call_form, closed, reply_form

TAGGED = CallForm(("<tool_call>", "\n"), ("\n", "</tool_call>"), "<tool_call>\n", "\n</tool_call>")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "sub")]


def test_text_has_no_form():
    assert reply_form("auto", TOOLS, None, TAGGED) is None
    assert reply_form(None, None, {"type": "text"}, TAGGED) is None


def test_a_named_tool_is_the_only_option_and_required_leaves_all():
    named = reply_form({"type": "function", "function": {"name": "sub"}}, TOOLS, None, TAGGED)
    assert (named.places, named.call_finish) == (["tools.1.function.parameters"], "stop")
    required = reply_form("required", TOOLS, {"type": "json_object"}, TAGGED)
    assert (len(required.options), required.call_finish) == (2, "tool_calls")
    assert required.options[0] == [
        "<tool_call>", "\n", '{"name": "add", "arguments": ', SchemaPart({"type": "object"}), "}", "\n", "</tool_call>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "is_closed"),
    [
        ({"type": "object", "properties": {"input": {"type": "integer"}}}, True),
        ({"type": "object"}, False),
        ({"properties": {}, "additionalProperties": True}, False),
        ({"properties": {}, "anyOf": [{"properties": {"b": {}}}]}, False),
    ],
)
def test_a_call_has_no_arguments_that_its_tool_does_not_name(parameters, is_closed):
    assert closed(parameters) == (parameters | {"additionalProperties": False} if is_closed else parameters)


@pytest.mark.parametrize(
    ("choice", "tools", "form", "param"),
    [
        ("required", [], None, "tool_choice"),
        ("always", TOOLS, None, "tool_choice"),
        ({"type": "function", "function": {"name": "mul"}}, TOOLS, None, "tool_choice"),
        ({"type": "custom"}, TOOLS, None, "tool_choice"),
        ("required", [{"function": {"name": 'a"b'}}], None, "tools.0.function.name"),
        ("required", [{"function": {"name": "a", "parameters": [1]}}], None, "tools.0.function.parameters"),
        (None, None, {"type": "json_schema", "json_schema": {"schema": True}}, "response_format.json_schema.schema"),
    ],
)
def test_what_is_not_a_form_is_named(choice, tools, form, param):
    with pytest.raises(FormError) as caught:
        reply_form(choice, tools, form, TAGGED)
    assert caught.value.param == param


@pytest.mark.parametrize("form", [CallForm(), TAGGED])
@pytest.mark.parametrize("arguments", ["{}", '{"a": "}\\n</tool_call>", "b": {"c": {}}}'])
def test_a_call_is_read_whole_and_in_any_pieces(form, arguments):
    text = f'{form.opening_text}{{"name": "add", "arguments": {arguments}}}{form.closing_text}'
    for first, second in itertools.combinations(range(len(text) + 1), 2):
        reader = CallReader(form)
        pieces = [reader.push(text[:first], last=False), reader.push(text[first:second], last=False),
                  reader.push(text[second:], last=True)]  # fmt: skip
        read = [piece for piece in pieces if piece is not None]
        assert [piece.name for piece in read if piece.name] == ["add"]
        assert "".join(piece.arguments for piece in read) == arguments


def test_a_call_that_was_cut_keeps_what_came():
    reader = CallReader(TAGGED)
    assert reader.push('<tool_call>\n{"na', last=True) is None
    reader = CallReader(CallForm())
    assert reader.push('{"name": "add", "arguments": {"a": 1', last=True).arguments == '{"a": 1'


def test_tags_are_tokens_where_the_tokenizer_has_them():
    tokenizer = SimpleNamespace(
        chat_template="…<tool_call>…", all_special_tokens=["<tool_call>"], get_added_vocab=lambda: {"<tool_call>": 7}
    )
    form = call_form(tokenizer)
    assert (form.opening, form.opening_text) == ((7, "\n"), "\n"), "a special token is not shown"
    assert (form.closing, form.closing_text) == (("\n", "</tool_call>"), "\n</tool_call>")
    assert call_form(SimpleNamespace(chat_template=None)) == CallForm()
