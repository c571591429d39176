# /// script
# [tool.client]
# name = "pi"
# formats = ["chat", "responses"]
# tool = { calls = "bash", arguments = { command = "echo seen {}" } }
#
# [tool.client.npm]
# "@mariozechner/pi-coding-agent" = "0.73.1"
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""pi on the command line: `pi -p`, with `-c` for what follows."""

import json

from talking import Setup, run, serve


def opened(setup: Setup):
    api = "openai-completions" if setup.format == "chat" else "openai-responses"
    provider = {"baseUrl": setup.base_url, "apiKey": "any", "api": api, "models": [{"id": setup.model}]}
    there = setup.folder / ".pi/agent"
    there.mkdir(parents=True)
    (there / "models.json").write_text(json.dumps({"providers": {"rlproxy": provider}}))
    goes_on = []

    def say(text):
        flags = ["-p", "--offline", "--provider", "rlproxy", "--model", setup.model, *goes_on]
        shown = run("pi", *flags, text, folder=setup.folder, HOME=str(setup.folder))
        goes_on[:] = ["-c"]
        return shown

    return say


serve(opened)
