"""Schemas and texts as masks over the small model's vocabulary; what cannot be kept to, refused with its place."""

import json
import random

import pytest
from transformers import AutoTokenizer

from trainer.serve import constraints
from trainer.serve.constraints import Compiler, ConstraintError, SchemaPart

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
END = 2


@pytest.fixture(scope="module")
def tokenizer(weights):
    return AutoTokenizer.from_pretrained(weights)


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return Compiler(tokenizer, len(tokenizer) + 5, [END])


def reply(constraint, seed):
    """Tokens drawn evenly of all that may come next."""
    state, tokens, rng = constraint.start(), [], random.Random(seed)
    while len(tokens) < 200:
        mask = state.mask()
        assert not mask[-5:].any(), "the model's spare rows are no tokens"
        allowed = mask.nonzero()[:, 0].tolist()
        token = END if END in allowed else rng.choice(allowed)
        if token == END:
            return tokens
        state.take(token)
        tokens.append(token)
    pytest.fail("did not end")


def test_whatever_is_drawn_follows_the_schema(compiler, tokenizer):
    constraint = compiler.compile([[SchemaPart(PERSON)]])
    for seed in range(20):
        value = json.loads(tokenizer.decode(reply(constraint, seed)))
        assert set(value) == {"name", "kind"} and value["kind"] in ("cat", "dog") and len(value["name"]) <= 8


def test_one_of_several_options_with_texts_around(compiler, tokenizer):
    options = [["<tool_call>\n", f'{{"name": "{name}", "arguments": ', SchemaPart(PERSON), "}"] for name in "fg"]
    names = {json.loads(tokenizer.decode(reply(compiler.compile(options), seed))[12:])["name"] for seed in range(20)}
    assert names == {"f", "g"}


def test_replies_to_one_constraint_go_their_own_ways(compiler):
    constraint = compiler.compile([[SchemaPart(PERSON)]])
    first, second = constraint.start(), constraint.start()
    token = int(first.mask().nonzero()[0, 0])
    first.take(token)
    assert second.mask()[token], "the other is still at its start"
    with pytest.raises(ConstraintError):
        second.take(END + 1 if not second.mask()[END + 1] else 0)


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ({"properties": {"a": {"not": {}}}}, ("properties", "a", "not"), "not"),
        ({"properties": {"not": {"uniqueItems": True}}}, ("properties", "not", "uniqueItems"), "uniqueItems"),
        ({"not": {}, "x-guidance": {"lenient": True}}, ("not",), "not"),
        ({"items": {"$ref": "https://example.com/x"}}, ("items", "$ref"), "does not fetch"),
        ({"type": "strang"}, ("type",), "strang"),
        ({"type": "string", "pattern": "(("}, (), "unclosed group"),
        ({"enum": []}, (), "Unsatisfiable"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, (), "Unsatisfiable"),
        ({"$ref": "#"}, (), "without end"),
        (nested(500), (), "recursion limit"),
        (nested(100_000), (), "nested too deeply"),
        ({"const": "x" * 1_000_000}, (), "1,000,013 bytes"),
        ({"allOf": [{"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "string"}},
                                "required": [f"p{i}{j}"]} for j in range(4)]} for i in range(12)]}, (), "too large"),
        ({"type": "integer", "multipleOf": 982451653}, (), "fuel"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_to_is_refused(compiler, schema, path, reason):
    with pytest.raises(ConstraintError, match=reason) as caught:
        compiler.compile([[SchemaPart(schema)]])
    assert caught.value.path == path


def test_the_option_at_fault_is_named(compiler):
    with pytest.raises(ConstraintError) as caught:
        compiler.compile([["a", SchemaPart(PERSON)], ["b", SchemaPart({"items": {"not": {}}})]])
    assert (caught.value.option, caught.value.path) == (1, ("items", "not"))


def test_a_mask_that_takes_too_long_ends_the_reply(compiler, monkeypatch):
    state = compiler.compile([[SchemaPart(PERSON)]]).start()
    monkeypatch.setattr(constraints, "MASK_SECONDS", -1.0)
    with pytest.raises(ConstraintError, match="takes too long"):
        state.mask()


def test_a_grammar_is_compiled_once_while_it_is_among_the_newest(compiler, monkeypatch):
    monkeypatch.setattr(constraints, "CACHED", 2)
    options = [[[SchemaPart({"const": n})]] for n in range(3)]
    first = compiler.compile(options[0])
    assert compiler.compile(options[0]) is first
    compiler.compile(options[1]), compiler.compile(options[2])
    assert compiler.compile(options[0]) is not first
