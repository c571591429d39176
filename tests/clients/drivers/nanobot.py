# /// script
# dependencies = ["nanobot-ai==0.3.5"]
#
# [tool.client]
# name = "nanobot"
# formats = ["chat"]
# rate = "rl:"
# tool = { calls = "exec", arguments = { command = "echo seen {}" } }
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""nanobot's agent on the command line, one message at a time of one session."""

import json

from talking import Setup, run, serve


def opened(setup: Setup):
    defaults = {"workspace": str(setup.folder / "w"), "model": setup.model, "provider": "custom"}
    config = {
        "agents": {"defaults": defaults},
        "providers": {"custom": {"apiKey": "any", "apiBase": setup.base_url}},
    }
    (setup.folder / "config.json").write_text(json.dumps(config))
    flags = ["-c", str(setup.folder / "config.json"), "-s", "cli:talk", "--no-markdown", "--classic"]
    return lambda text: run("nanobot", "agent", *flags, "-m", text, folder=setup.folder, HOME=str(setup.folder))


serve(opened)
