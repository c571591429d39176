# /// script
# [tool.client]
# name = "Codex"
# formats = ["responses"]
# rate = " /rl "
# tool = { calls = "exec_command", arguments = { cmd = "echo seen {}" } }
#
# [tool.client.npm]
# "@openai/codex" = "0.171.0"
#
# [tool.client.side]
# asks = "a summary when the context is full"
# tokens = 60000
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Codex on the command line: `codex exec`, and `codex exec resume --last` for what follows."""

from talking import Setup, run, serve

CONFIG = """model = "{}"
model_provider = "rlproxy"
[model_providers.rlproxy]
name = "rlproxy"
base_url = "{}"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
FULL = "model_auto_compact_token_limit = 50000\n"
QUIET = [
    "-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false", "--disable", "plugins",
    "--disable", "apps", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
]  # fmt: skip


def opened(setup: Setup):
    there = setup.folder / "codex"
    there.mkdir()
    (there / "config.toml").write_text((FULL if setup.side else "") + CONFIG.format(setup.model, setup.base_url))
    goes_on = []

    def say(text):
        shown = run("codex", "exec", *goes_on, *QUIET, text, folder=setup.folder, CODEX_HOME=str(there))
        goes_on[:] = ["resume", "--last"]
        return shown

    return say


serve(opened)
