# /// script
# [tool.client]
# name = "opencode"
# formats = ["chat"]
# tool = { calls = "bash", arguments = { command = "echo seen {}", description = "Looks" } }
#
# [tool.client.npm]
# opencode-ai = "1.18.33"
#
# [tool.client.side]
# asks = "a title, a summary when the context is full"
# tokens = 30000
# answers = true
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""opencode on the command line: `opencode run`, with `-c` for what follows."""

import json

from talking import Setup, run, serve


def opened(setup: Setup):
    limits = {"limit": {"context": 20_000, "output": 2_000}} if setup.side else {}
    provider = {
        "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": setup.base_url, "apiKey": "any"},
        "models": {setup.model: {"name": setup.model, **limits}},
    }  # fmt: skip
    config = {
        "provider": {"rlproxy": provider},
        "autoupdate": False,
        "permission": {"bash": "allow"},
        "share": "disabled",
    }
    (setup.folder / "opencode.json").write_text(json.dumps(config))
    goes_on = []

    def say(text):
        flags = ["-m", f"rlproxy/{setup.model}", *goes_on]
        shown = run(
            "opencode",
            "run",
            *flags,
            text,
            folder=setup.folder,
            HOME=str(setup.folder),
            OPENCODE_DISABLE_MODELS_FETCH="1",
        )
        goes_on[:] = ["-c"]
        return shown

    return say


serve(opened)
