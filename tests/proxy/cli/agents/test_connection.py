"""Each agent connected and disconnected in a home folder as people have them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.cli.agents import connection, json_text
from proxy.cli.agents.catalog import AGENTS, AgentLink, Home
from proxy.cli.agents.paths import UnreadableSettings

LINK = AgentLink("http://127.0.0.1:8484", "small", None)
KEYED = AgentLink("http://127.0.0.1:8484", "small", "sk-secret")
CLOUD = AgentLink("http://127.0.0.1:8484", "small", None, own_key=True)

CLAUDE = '{\n  // not JSON, but people do it\n  "permissions": {"allow": ["Bash(ls:*)"]},\n  "env": {"FOO": "1"}\n}\n'
CODEX = '# mine\nmodel = "gpt-5"  # good\n\n[mcp_servers.x]\ncommand = "y"\n'
OPENCODE = '{\n  "$schema": "x",\n  /* themes */\n  "theme": "dark", // yes\n}\n'
OPENCLAW = (
    '{\n  agents: { defaults: { model: "a/b", models: { "a/b": {} } } },\n  // tokens\n  gateway: { port: 1 },\n}\n'
)
AIDER = "# aider\nmodel: gpt-5  # mine\ndark-mode: true\n"
CONTINUE = (
    "name: Local\nversion: 1.0.0\nschema: v1\nmodels:\n  # first\n  - name: x\n    provider: ollama\n    model: y\n"
)
HERMES = "# mine\nmodel: gpt-5  # good\n\n# what it keeps\nmemory:\n  nudge_interval: 2\n"
LLM = "- model_id: other\n  model_name: o\n  api_base: http://x\n"
FILES = {
    "claude-code": {".claude/settings.json": CLAUDE, ".claude/commands/rl.md": "my own /rl\n"},
    "codex": {".codex/config.toml": CODEX},
    "opencode": {".config/opencode/opencode.jsonc": OPENCODE},
    "openclaw": {".openclaw/openclaw.json": OPENCLAW},
    "aider": {".aider.conf.yml": AIDER},
    "continue": {".continue/config.yaml": CONTINUE},
    "llm": {
        ".config/io.datasette.llm/extra-openai-models.yaml": LLM,
        ".config/io.datasette.llm/keys.json": '{"a": "b"}',
    },
    "hermes": {".hermes/config.yaml": HERMES},
    "open-webui": {},
    "cursor": {},
}
WITHOUT_FILES = ("open-webui", "cursor")
CASES = [(agent, full) for agent in FILES for full in (False, True)]


class Person:
    """Somebody's home folder, and an rlproxy home."""

    def __init__(self, folder: Path, agent: str) -> None:
        self.folder, self.agent = folder / "person", agent
        self.folder.mkdir()
        self.ours = folder / "rlproxy"

    def have(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def all(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}

    def connect(self, link: AgentLink = LINK) -> list[connection.Change]:
        record = connection.load(self.ours, self.agent)
        changes = connection.connecting(AGENTS[self.agent](link, Home(self.folder, {})), record)
        connection.save(self.ours, self.agent, changes, [])
        connection.apply(changes)
        return changes

    def disconnect(self) -> list[connection.Change]:
        record = connection.load(self.ours, self.agent)
        assert record is not None
        changes = connection.disconnecting(record)
        connection.apply(changes)
        connection.forget(self.ours, self.agent)
        return changes

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def person(tmp_path: Path, request: pytest.FixtureRequest) -> Person:
    return Person(tmp_path, request.param)


@pytest.mark.parametrize(("person", "full"), CASES, indirect=["person"])
def test_twice_is_once_and_undone_is_as_it_was(person: Person, full: bool) -> None:
    person.have(FILES[person.agent] if full else {})
    before = person.all()
    person.connect(KEYED)
    connected = person.all()
    assert (connected != before) == (person.agent not in WITHOUT_FILES)
    assert not any(change.changes for change in person.connect(KEYED))
    assert person.all() == connected
    person.connect(AgentLink("http://127.0.0.1:9999", "other", None))  # moved, and without a key now
    assert not any(b"8484" in raw or b"sk-secret" in raw for raw in person.all().values())
    person.connect(KEYED)
    assert person.all() == connected
    person.disconnect()
    assert person.all() == before


@pytest.mark.parametrize("person", FILES, indirect=True)
def test_comments_and_all_other_settings_survive(person: Person) -> None:
    person.have(FILES[person.agent])
    person.connect()
    for name, text in FILES[person.agent].items():
        now = person.text(name)
        if name.endswith("rl.md"):
            continue
        for line in text.splitlines():
            if "model" not in line and "env" not in line and "theme" not in line and line not in ("{", "}"):
                assert line.rstrip(",") in now, line
        for comment in ("// not JSON", "# mine", "# good", "/* themes */", "// yes", "// tokens", "# first", "# aider"):
            assert comment in now or comment not in text


OWN_KEYS = {
    "aider": (".aider.conf.yml", "model: gpt-5\nopenai-api-key: sk-mine\n"),
    "claude-code": (".claude/settings.json", '{"env": {"ANTHROPIC_AUTH_TOKEN": "sk-mine"}}'),
    "codex": (".codex/config.toml", '[model_providers.rlproxy]\nexperimental_bearer_token = "sk-mine"\n'),
    "opencode": (".config/opencode/opencode.json", '{"provider": {"rlproxy": {"options": {"apiKey": "sk-mine"}}}}'),
    "openclaw": (".openclaw/openclaw.json", '{"models": {"providers": {"rlproxy": {"apiKey": "sk-mine"}}}}'),
    "continue": (".continue/config.yaml", "models:\n  - name: rlproxy\n    apiKey: sk-mine\n"),
    "llm": (".config/io.datasette.llm/extra-openai-models.yaml", "- model_id: rlproxy\n  api_key_name: sk-mine\n"),
}


@pytest.mark.parametrize("person", OWN_KEYS, indirect=True)
def test_before_a_cloud_an_agent_keeps_its_own_key(person: Person) -> None:
    name, text = OWN_KEYS[person.agent]
    person.have({name: text})
    for link in (CLOUD, LINK, CLOUD):  # also where an earlier connection had replaced it
        person.connect(link)
    assert person.text(name).count("sk-mine") == 1
    person.disconnect()
    assert person.text(name) == text


def test_before_a_cloud_aider_without_a_key_in_its_file_still_has_that_of_its_environment(tmp_path: Path) -> None:
    person = Person(tmp_path, "aider")
    person.connect(CLOUD)
    assert "openai-api-key" not in person.text(".aider.conf.yml")


def test_before_a_cloud_claude_code_does_not_send_its_login(tmp_path: Path) -> None:
    person = Person(tmp_path, "claude-code")
    person.connect(CLOUD)
    assert json.loads(person.text(".claude/settings.json"))["env"]["ANTHROPIC_AUTH_TOKEN"] == "rlproxy"


def readers(name: str, text: str) -> Any:
    if name.endswith(".toml"):
        return tomllib.loads(text)
    return yaml.safe_load(text) if name.endswith((".yml", ".yaml")) else json_text.parse(text)


@pytest.mark.parametrize("person", [agent for agent in FILES if agent not in WITHOUT_FILES], indirect=True)
def test_a_file_that_was_changed_since_keeps_the_change(person: Person) -> None:
    """Only our keys go; what they replaced comes back."""
    person.have(FILES[person.agent])
    person.connect(KEYED)
    for name in FILES[person.agent]:
        if name.endswith((".toml", ".yml", ".yaml")):
            person.have({name: "# added later\n" + person.text(name)})
        elif name.endswith((".json", ".jsonc")):
            person.have({name: json_text.set_value(person.text(name), ("added",), "later")})
    changes = person.disconnect()
    assert any("only what rlproxy set" in change.explanation for change in changes)
    for name, text in FILES[person.agent].items():
        if name.endswith(".md"):
            assert person.text(name) == text
            continue
        now = readers(name, person.text(name))
        if isinstance(now, dict):
            assert ("added" in now) == name.endswith((".json", ".jsonc"))
            now.pop("added", None)
        assert now == readers(name, text)
        assert "8484" not in person.text(name) and "sk-secret" not in person.text(name)


@pytest.mark.parametrize("person", ["claude-code"], indirect=True)
def test_a_value_the_person_changed_stays(person: Person) -> None:
    person.connect()
    file = ".claude/settings.json"
    person.have(
        {
            file: json_text.set_value(person.text(file), ("env", "ANTHROPIC_MODEL"), "mine"),
            ".claude/commands/rl.md": "x",
        }
    )
    how = " ".join(change.explanation for change in person.disconnect())
    assert json.loads(person.text(file)) == {"env": {"ANTHROPIC_MODEL": "mine"}}
    assert "env.ANTHROPIC_MODEL was changed too" in how and person.text(".claude/commands/rl.md") == "x"


@pytest.mark.parametrize("person", ["codex"], indirect=True)
def test_a_file_that_is_gone_stays_gone(person: Person) -> None:
    person.connect()
    (person.folder / ".codex/config.toml").unlink()
    person.disconnect()
    assert person.all() == {}


@pytest.mark.parametrize("person", ["codex"], indirect=True)
@pytest.mark.parametrize("broken", ["a = = b", "model_providers = 3\n"])
def test_a_file_that_cannot_be_read_is_left_alone(person: Person, broken: str) -> None:
    person.have({".codex/config.toml": broken})
    with pytest.raises(UnreadableSettings, match=r"config\.toml was left as it is"):
        person.connect()
    assert person.text(".codex/config.toml") == broken


@pytest.mark.parametrize("person", ["claude-code"], indirect=True)
@pytest.mark.parametrize("spoiled", [b'{"env": ', b"\xff\xfe"])
def test_a_former_file_that_cannot_be_taken_back_is_remembered(person: Person, spoiled: bytes) -> None:
    person.have({".claude/settings.json": CLAUDE})
    person.connect()
    written = person.text(".claude/settings.json")
    (person.folder / ".claude/settings.json").write_bytes(spoiled)
    elsewhere = Home(person.folder, {"CLAUDE_CONFIG_DIR": str(person.folder / "elsewhere")})
    record = connection.load(person.ours, person.agent)
    changes = connection.connecting(AGENTS[person.agent](LINK, elsewhere), record)
    connection.connect(person.ours, person.agent, changes, record)
    assert (person.folder / ".claude/settings.json").read_bytes() == spoiled
    person.have({".claude/settings.json": written})
    person.disconnect()
    assert person.all() == {".claude/settings.json": CLAUDE.encode()}


@pytest.mark.parametrize("person", ["claude-code"], indirect=True)
def test_links_and_modes_stay(person: Person) -> None:
    person.have({"dotfiles/settings.json": CLAUDE})
    (person.folder / "dotfiles/settings.json").chmod(0o640)
    (person.folder / ".claude").mkdir()
    (person.folder / ".claude/settings.json").symlink_to(person.folder / "dotfiles/settings.json")
    person.connect(KEYED)
    assert (person.folder / ".claude/settings.json").is_symlink()
    assert (person.folder / "dotfiles/settings.json").stat().st_mode & 0o777 == 0o640
    assert (person.folder / ".claude/commands/rl.md").stat().st_mode & 0o777 == 0o600
    assert (person.ours / "agents/claude-code.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("person", ["claude-code"], indirect=True)
def test_what_claude_code_gets(person: Person) -> None:
    person.connect(KEYED)
    assert json.loads(person.text(".claude/settings.json"))["env"] == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8484", "ANTHROPIC_AUTH_TOKEN": "sk-secret",
        "ANTHROPIC_MODEL": "small", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "small",
    }  # fmt: skip
    assert person.text(".claude/commands/rl.md").splitlines()[3:] == [
        "disable-model-invocation: true", "---", "/rl $ARGUMENTS",
    ]  # fmt: skip


@pytest.mark.parametrize("person", ["openclaw"], indirect=True)
def test_openclaw_with_a_plain_model_and_a_list_of_allowed_ones(person: Person) -> None:
    person.have(FILES["openclaw"])
    person.connect()
    defaults = json_text.parse(person.text(".openclaw/openclaw.json"))["agents"]["defaults"]
    assert defaults["model"] == "rlproxy/small" and set(defaults["models"]) == {"a/b", "rlproxy/small"}


def test_folders_come_from_the_agents_own_variables(tmp_path: Path) -> None:
    for agent, variable in [
        ("claude-code", "CLAUDE_CONFIG_DIR"), ("codex", "CODEX_HOME"), ("opencode", "XDG_CONFIG_HOME"),
        ("openclaw", "OPENCLAW_STATE_DIR"), ("continue", "CONTINUE_GLOBAL_DIR"), ("llm", "LLM_USER_PATH"),
        ("openclaw", "OPENCLAW_CONFIG_PATH"), ("hermes", "HERMES_HOME"),
    ]:  # fmt: skip
        place = tmp_path / "elsewhere"
        setup = AGENTS[agent](LINK, Home(tmp_path / "person", {variable: str(place)}))
        assert all(place in (put.file, *put.file.parents) for put in setup.edits)


def test_hermes_asks_a_custom_endpoint(tmp_path: Path) -> None:
    person = Person(tmp_path, "hermes")
    person.have({".hermes/config.yaml": HERMES.replace(" gpt-5  # good", "\n  default: gpt-5\n  max_tokens: 9\n")})
    person.connect(KEYED)
    config = yaml.safe_load(person.text(".hermes/config.yaml"))
    assert config["model"] == {
        "default": "small", "provider": "custom", "base_url": "http://127.0.0.1:8484/v1", "api_key": "sk-secret",
        "max_tokens": 9,
    }  # fmt: skip
    assert config["memory"] == {"nudge_interval": 2} and "# what it keeps" in person.text(".hermes/config.yaml")


PANEL = LINK._replace(panel="rlproxy watch --open")
HOOKED = '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}], "PreToolUse": []}}\n'


def test_a_panel_is_a_hook_beside_those_that_are_there(tmp_path: Path) -> None:
    person = Person(tmp_path, "claude-code")
    person.have({".claude/settings.json": HOOKED})
    before = person.all()
    for _ in range(2):  # a second time changes nothing
        person.connect(PANEL)
        hooks = json.loads(person.text(".claude/settings.json"))["hooks"]
        commands = [hook["command"] for entry in hooks["Stop"] for hook in entry["hooks"]]
        assert commands == ["say done", "rlproxy watch --open"] and hooks["PreToolUse"] == []
    person.connect()  # without it
    assert json.loads(person.text(".claude/settings.json"))["hooks"] == json.loads(HOOKED)["hooks"]
    person.connect(PANEL)
    person.disconnect()
    assert person.all() == before


def test_codex_has_one_program_that_it_notifies(tmp_path: Path) -> None:
    person = Person(tmp_path, "codex")
    person.have({".codex/config.toml": 'notify = ["bell"]\n' + CODEX})
    before = person.all()
    person.connect(PANEL)
    assert tomllib.loads(person.text(".codex/config.toml"))["notify"] == ["sh", "-c", "rlproxy watch --open"]
    person.disconnect()
    assert person.all() == before
