# /// script
# requires-python = ">=3.12"
# dependencies = ["mistral-vibe==3.0.2"]
#
# [tool.client]
# name = "mistral-vibe"
# formats = ["chat"]
# tool = { calls = "bash", arguments = { command = "echo seen {}" } }
#
# [tool.client.side]
# asks = "a summary when the context is full"
# tokens = 20000
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Mistral's Vibe on the command line: `vibe -p`, with `-c` for what follows."""

from talking import Setup, run, serve

CONFIG = """active_model = "{}"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false
auto_compact_threshold = {}
[[providers]]
name = "rlproxy"
api_base = "{}"
api_key_env_var = "OPENAI_API_KEY"
api_style = "openai"
backend = "generic"
[[models]]
name = "{}"
provider = "rlproxy"
alias = "{}"
"""


def opened(setup: Setup):
    there = setup.folder / ".vibe"
    there.mkdir()
    full = 10_000 if setup.side else 200_000
    (there / "config.toml").write_text(CONFIG.format(setup.model, full, setup.base_url, setup.model, setup.model))
    goes_on = []

    def say(text):
        shown = run(
            "vibe", "--trust", "--auto-approve", *goes_on, "-p", text, folder=setup.folder, HOME=str(setup.folder)
        )
        goes_on[:] = ["-c"]
        return shown

    return say


serve(opened)
