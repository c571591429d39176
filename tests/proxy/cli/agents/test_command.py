"""`rlproxy connect` and `disconnect` as a person runs them, in a home folder of their own."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy


def person(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody whose agents keep their files here."""
    folder = tmp_path / "person"
    folder.mkdir(exist_ok=True)
    nowhere = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "OPENCLAW_STATE_DIR", "LLM_USER_PATH")
    return {"HOME": str(folder), **dict.fromkeys(nowhere, "")}


async def test_connect_shows_writes_and_disconnect_takes_back(cli: Proxy, tmp_path: Path) -> None:
    env = person(tmp_path)
    file = tmp_path / "person/.codex/config.toml"
    file.parent.mkdir()
    file.write_text('# mine\nmodel = "gpt-5"\n')
    code, out, _ = await rlproxy(cli.home, "connect", "codex", "--dry-run", **env)
    assert code == 0 and '-model = "gpt-5"' in out and '+model = "fake"' in out and "would be connected" in out
    assert file.read_text() == '# mine\nmodel = "gpt-5"\n'
    code, out, _ = await rlproxy(cli.home, "connect", "codex", **env)
    assert code == 0 and "is connected" in out and f'base_url = "{cli.url}/v1"' in file.read_text()
    code, out, _ = await rlproxy(cli.home, "connect", "codex", "--json", **env)
    assert code == 0 and json.loads(out)["changed"] is False
    code, out, _ = await rlproxy(cli.home, "disconnect", "codex", "--json", **env)
    assert code == 0 and json.loads(out)["files"][0]["how"] == "put back as it was"
    assert file.read_text() == '# mine\nmodel = "gpt-5"\n'
    code, _, err = await rlproxy(cli.home, "disconnect", "codex", **env)
    assert code == 1 and "not connected" in err


async def test_folders_that_were_made_go_too(cli: Proxy, tmp_path: Path) -> None:
    env = person(tmp_path)
    assert (await rlproxy(cli.home, "connect", "claude-code", "--yes", **env))[0] == 0
    assert (tmp_path / "person/.claude/commands/rl.md").exists()
    assert (await rlproxy(cli.home, "disconnect", "claude-code", "--yes", **env))[0] == 0
    assert list((tmp_path / "person").iterdir()) == []


async def test_a_file_that_cannot_be_taken_back_keeps_its_record(cli: Proxy, tmp_path: Path) -> None:
    env = person(tmp_path)
    file, command = (tmp_path / "person/.claude" / name for name in ("settings.json", "commands/rl.md"))
    file.parent.mkdir()
    file.write_text('{"theme": "dark"}\n')
    assert (await rlproxy(cli.home, "connect", "claude-code", "--yes", **env))[0] == 0
    file.write_text(broken := file.read_text().replace('"dark"', '"dark'))
    for flags in ("--dry-run", "--json", "--yes"):
        code, out, err = await rlproxy(cli.home, "disconnect", "claude-code", flags, **env)
        assert code == 1 and f"{file} is left as it is" in err and "is disconnected" not in out
        assert command.exists() is (flags == "--dry-run")  # the rest is taken back
    assert file.read_text() == broken
    file.write_text(broken.replace('"dark', '"light"'))
    code, out, _ = await rlproxy(cli.home, "disconnect", "claude-code", **env)
    assert code == 0 and json.loads(file.read_text()) == {"theme": "light"}
    assert (await rlproxy(cli.home, "disconnect", "claude-code", **env))[0] == 1


async def test_agents_are_told_how_much_the_model_takes(cli: Proxy, tmp_path: Path) -> None:
    cli.backend.window = 65_536
    env = person(tmp_path)
    assert (await rlproxy(cli.home, "connect", "claude-code", "--yes", **env))[0] == 0
    written = json.loads((tmp_path / "person/.claude/settings.json").read_text())["env"]
    assert written["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536" and written["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
    assert (await rlproxy(cli.home, "connect", "codex", "--yes", **env))[0] == 0
    assert "model_context_window = 65536\n" in (tmp_path / "person/.codex/config.toml").read_text()
    cli.backend.window = 8192
    assert (await rlproxy(cli.home, "connect", "claude-code", "--yes", **env))[0] == 0
    written = json.loads((tmp_path / "person/.claude/settings.json").read_text())["env"]
    assert written["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "2048" and "CLAUDE_CODE_MAX_CONTEXT_TOKENS" not in written


async def test_a_key_is_written_but_never_shown(tmp_path: Path) -> None:
    env = {**person(tmp_path), "RLPROXY_SERVER__API_KEY": "sk-use", "RLPROXY_SERVER__ADMIN_KEY": "sk-admin"}
    for flags in ([], ["--json"]):
        code, out, err = await rlproxy(tmp_path / "h", "connect", "llm", "--model", "m", *flags, **env)
        assert code == 0 and "sk-" not in out + err
    keys = tmp_path / "person/.config/io.datasette.llm/keys.json"
    assert json.loads(keys.read_text()) == {"rlproxy": "sk-use"}
    code, out, _ = await rlproxy(tmp_path / "h", "disconnect", "llm", **env)
    assert code == 0 and "sk-" not in out


async def test_an_agent_without_files_says_what_to_paste(cli: Proxy, tmp_path: Path) -> None:
    code, out, _ = await rlproxy(cli.home, "connect", "open-webui", **person(tmp_path))
    assert code == 0 and f"OPENAI_API_BASE_URL={cli.url}/v1" in out


async def test_what_cannot_be_is_said_in_a_sentence(tmp_path: Path) -> None:
    env = {**person(tmp_path), "RLPROXY_SERVER__PORT": "1"}
    code, _, err = await rlproxy(tmp_path / "h", "connect", "emacs", **env)
    assert code == 1 and "claude-code" in err
    code, _, err = await rlproxy(tmp_path / "h", "connect", "codex", **env)
    assert code == 3 and "rlproxy serve" in err and "--model NAME" in err and err.count("\n") == 1
    code, _, err = await rlproxy(tmp_path / "h", "disconnect", "open-webui", **env)
    assert code == 1 and "take it out there" in err
    (tmp_path / "person/.claude").mkdir()
    (tmp_path / "person/.claude/settings.json").write_text("{ broken")
    code, _, err = await rlproxy(tmp_path / "h", "connect", "claude-code", "--model", "m", **env)
    assert code == 1 and "was left as it is" in err and err.count("\n") == 1
    assert not (tmp_path / "person/.claude/commands").exists()
