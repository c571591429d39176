"""Values set in and taken out of a person's files, with all else as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tomlkit
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli.agents import json_text, toml_text, yaml_text
from proxy.cli.agents.paths import MISSING, PathItem, UnreadableSettings, look

WORDS = st.text(max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(WORDS.filter(lambda key: key != "ours"), VALUES, max_size=4)
JSON5 = """\
// mine
{
  model: 'old', /* why */
  "provider": { "other": { "url": "http://x/y", }, }, // keep
  list: [1, +2, .5, 0x1F, Infinity,],
  last: "a \\"quoted\\" // no comment",
}
"""


@given(OBJECTS, VALUES, st.sampled_from([None, 2, "\t"]))
def test_json_is_what_python_reads(found: dict[str, Any], value: Any, indent: Any) -> None:
    text = json.dumps(found, indent=indent)
    assert json_text.parse(text) == found
    new = json_text.set_value(text, ("ours", "deep"), value)
    assert json.loads(new) == {**found, "ours": {"deep": value}}
    again = json_text.set_value(new, ("ours", "deep"), [value])
    assert json.loads(again) == {**found, "ours": {"deep": [value]}}
    assert json.loads(json_text.drop(new, ("ours",))) == found


def test_json5_keeps_its_comments() -> None:
    new = json_text.set_value(JSON5, ("provider", "rlproxy"), {"a": 1})
    new = json_text.set_value(new, ("model",), "new")
    assert "// mine" in new and "/* why */" in new and "// keep" in new and "'old'" not in new
    found = json_text.parse(new)
    assert found["provider"] == {"other": {"url": "http://x/y"}, "rlproxy": {"a": 1}}
    assert found["list"] == [1, 2, 0.5, 31, float("inf")] and found["last"] == 'a "quoted" // no comment'
    back = json_text.set_value(json_text.drop(new, ("provider", "rlproxy")), ("model",), "old")
    assert json_text.parse(back) == json_text.parse(JSON5) and "// keep" in back


@pytest.mark.parametrize("key", ["a", "b", "c"])
def test_json_members_go_with_their_comma_and_without_their_neighbours_comments(key: str) -> None:
    text = '{\n  "a": 1, // one\n  "b": 2, // two\n  "c": 3 // three\n}\n'
    new = json_text.drop(text, (key,))
    assert json_text.parse(new) == {k: v for k, v in {"a": 1, "b": 2, "c": 3}.items() if k != key}
    assert new.count("//") >= 2


def test_json_in_an_empty_file() -> None:
    assert json_text.set_value("", ("env", "A"), "b") == '{\n  "env": {\n    "A": "b"\n  }\n}\n'


@pytest.mark.parametrize(
    "text", ["{", "[1", '{"a" 1}', '{"a": }', "{} {}", '{"a": 1 "b": 2}', "nonsense", '{"a": "\n"}']
)
def test_no_json(text: str) -> None:
    with pytest.raises(UnreadableSettings):
        json_text.parse(text)


def test_json_that_is_in_the_way() -> None:
    with pytest.raises(UnreadableSettings):
        json_text.set_value('{"env": 3}', ("env", "A"), "b")
    with pytest.raises(UnreadableSettings):
        json_text.set_value("[]", ("env",), "b")


TOML = """\
# my codex
model = "gpt-5"   # the good one
approval_policy = "on-request"

[mcp_servers.x]
command = "y"  # keep

[model_providers.mine]
base_url = "http://z"
"""


def test_toml_keeps_comments_and_order() -> None:
    new = TOML
    for place, value in (
        (("model",), "m"),
        (("model_provider",), "rlproxy"),
        (("model_providers", "rlproxy", "name"), "r"),
    ):
        new = toml_text.set_value(new, place, value)
    found = toml_text.parse(new)
    assert (found["model"], found["model_provider"]) == ("m", "rlproxy")
    assert found["model_providers"] == {"mine": {"base_url": "http://z"}, "rlproxy": {"name": "r"}}
    assert found["mcp_servers"] == {"x": {"command": "y"}}
    assert all(comment in new for comment in ("# my codex", "# the good one", "# keep"))
    back = toml_text.drop(new, ("model_providers", "rlproxy"))
    back = toml_text.set_value(toml_text.drop(back, ("model_provider",)), ("model",), "gpt-5")
    assert toml_text.parse(back) == toml_text.parse(TOML)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True).filter(lambda k: k != "ours"), st.integers() | WORDS, max_size=4
    )
)
def test_toml_of_any_shape(found: dict[str, Any]) -> None:
    text = tomlkit.dumps(found)
    new = toml_text.set_value(text, ("ours", "deep", "x"), "y")
    assert toml_text.parse(new) == {**found, "ours": {"deep": {"x": "y"}}}
    assert toml_text.parse(toml_text.drop(new, ("ours",))) == found


def test_no_toml() -> None:
    with pytest.raises(UnreadableSettings):
        toml_text.parse("a = = b")
    with pytest.raises(UnreadableSettings):
        toml_text.set_value("model_providers = 3", ("model_providers", "rlproxy", "x"), "y")


ITEM = {"name": "rlproxy", "model": "m", "roles": ["chat"], "apiBase": "http://127.0.0.1:1/v1"}
AT = ("models", PathItem("name", "rlproxy"))
CONTINUE = """\
# mine
name: Local
version: 1.0.0
models:
  # the first
  - name: other   # keep
    provider: ollama
    prompt: |
      line one
      line two

rules:
- be short
"""


@pytest.mark.parametrize(
    "text",
    [
        CONTINUE,
        "",
        "name: x\n",
        "name: x",
        "models:\n",
        "models: []\n",
        "models: []  # none yet\nrules: []\n",
        "models:\n- name: other\n  model: x\nrules: []\n",
        "models:\n  - {name: other, model: x}",
    ],
)
def test_yaml_lists_take_an_item_and_give_it_back(text: str) -> None:
    new = yaml_text.set_value(text, AT, ITEM)
    found = yaml.safe_load(new)
    assert found["models"][0] == ITEM
    before = yaml.safe_load(text) or {}
    assert found["models"][1:] == (before.get("models") or [])
    assert {k: v for k, v in found.items() if k != "models"} == {k: v for k, v in before.items() if k != "models"}
    assert yaml_text.set_value(new, AT, ITEM) == new
    back = yaml.safe_load(yaml_text.drop(new, AT))
    assert (back.get("models") or []) == (before.get("models") or [])


def test_yaml_keeps_every_other_line() -> None:
    new = yaml_text.set_value(CONTINUE, AT, ITEM)
    assert all(line in new.splitlines() for line in CONTINUE.splitlines())
    assert yaml_text.drop(new, AT) == CONTINUE


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "- model_id: a\n  model_name: b\n", "[]\n"])
def test_yaml_lists_at_the_top(text: str) -> None:
    place = (PathItem("model_id", "rlproxy"),)
    item = {"model_id": "rlproxy", "model_name": "m"}
    new = yaml_text.set_value(text, place, item)
    assert yaml.safe_load(new) == [item, *(yaml.safe_load(text) or [])]
    assert (yaml.safe_load(yaml_text.drop(new, place)) or []) == (yaml.safe_load(text) or [])


AIDER = "# aider\nmodel: gpt-5  # mine\ndark-mode: true\nread:\n  - a.md\n"


def test_yaml_values() -> None:
    new = yaml_text.set_value(yaml_text.set_value(AIDER, ("model",), "openai/m"), ("openai-api-base",), "http://x/v1")
    assert yaml.safe_load(new) == {
        "model": "openai/m", "dark-mode": True, "read": ["a.md"], "openai-api-base": "http://x/v1",
    }  # fmt: skip
    assert "# mine" in new and "# aider" in new
    back = yaml_text.set_value(yaml_text.drop(new, ("openai-api-base",)), ("model",), "gpt-5")
    assert back == AIDER


@pytest.mark.parametrize("old", ["x", "'x y'", '"x"', "|\n  two\n  lines", "", "null", "3", "[a, b]"])
@given(value=st.text(st.characters(max_codepoint=0x2FF, exclude_categories=["Cc"]), max_size=12))
def test_yaml_values_of_any_kind_are_replaced(old: str, value: str) -> None:
    text = f"a: 1\nmodel: {old}\nb: 2\n"
    assert yaml.safe_load(yaml_text.set_value(text, ("model",), value)) == {"a": 1, "model": value, "b": 2}


@pytest.mark.parametrize("text", ["a: [", "- x\n- y\n", "models: [a, b]\n", "models: 3\n"])
def test_yaml_that_cannot_be_extended_is_refused(text: str) -> None:
    with pytest.raises(UnreadableSettings):
        yaml_text.set_value(text, AT, ITEM)


def test_look() -> None:
    found = {"a": [{"n": "x", "v": 1}], "b": None}
    assert look(found, ("a", PathItem("n", "x"), "v")) == 1 and look(found, ("b",)) is None
    for place in (("a", PathItem("n", "y")), ("b", "c"), ("c",), (PathItem("n", "x"),)):
        assert look(found, place) is MISSING
