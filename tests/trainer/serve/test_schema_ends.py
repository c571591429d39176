"""Schemas that some finite value satisfies, and schemas whose references require each other for ever."""

import pytest

from trainer.serve.schema_ends import TooManyReferences, has_finite_instance

TREE = {"type": "object", "properties": {"left": {"$ref": "#"}}, "required": []}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        TREE,
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}},
                                              "required": ["b"]}, "b": {"type": "string"}}},
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "string"}}},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"$ref": "#"}, "minItems": 1},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/elsewhere"},
    ],
)  # fmt: skip
def test_a_schema_that_ends(schema):
    assert has_finite_instance(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {**TREE, "required": ["left"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"allOf": [{"type": "string"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {
            "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
            "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]},
        }},
    ],
)  # fmt: skip
def test_a_schema_without_end(schema):
    assert not has_finite_instance(schema)


def test_many_references_are_given_up():
    names = range(600)
    chain = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 5} for n in names if n} | {"d0": {"type": "null"}}
    with pytest.raises(TooManyReferences):
        has_finite_instance({"$ref": "#/$defs/d599", "$defs": dict(sorted(chain.items(), reverse=True))})
