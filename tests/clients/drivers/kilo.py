# /// script
# [tool.client]
# name = "Kilo (CLI)"
# formats = ["chat"]
# tool = { calls = "bash", arguments = { command = "echo seen {}", description = "Looks" } }
#
# [tool.client.npm]
# "@kilocode/cli" = "7.8.1"
# "@kilocode/cli-linux-x64" = "7.8.1"
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Kilo on the command line: `kilo run`, with `-c` for what follows."""

import json

from talking import Setup, run, serve


def opened(setup: Setup):
    provider = {
        "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": setup.base_url, "apiKey": "any"},
        "models": {setup.model: {"name": setup.model}},
    }  # fmt: skip
    config = {
        "provider": {"rlproxy": provider},
        "autoupdate": False,
        "permission": {"bash": "allow"},
        "share": "disabled",
    }
    there = setup.folder / ".config/kilo"
    there.mkdir(parents=True)
    (there / "kilo.json").write_text(json.dumps(config))
    goes_on = []

    def say(text):
        flags = ["-m", f"rlproxy/{setup.model}", *goes_on]
        env = {"HOME": str(setup.folder), "KILO_DISABLE_MODELS_FETCH": "1", "KILO_TELEMETRY_LEVEL": "off"}
        shown = run("kilo", "run", *flags, text, folder=setup.folder, **env)
        goes_on[:] = ["-c"]
        return shown

    return say


serve(opened)
