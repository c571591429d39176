# /// script
# dependencies = ["gptme==0.35.1"]
#
# [tool.client]
# name = "gptme"
# formats = ["chat"]
# rate = "rl:"
# tool = { calls = "shell", arguments = { command = "echo seen {}" } }
#
# [tool.client.lacks]
# id = "it shows none"
# ///
"""gptme on the command line, without a person at it; a named conversation goes on."""

from talking import Setup, run, serve


def opened(setup: Setup):
    env = {
        "HOME": str(setup.folder), "OPENAI_BASE_URL": setup.base_url, "OPENAI_API_KEY": "any", "GPTME_CHECK": "false",
    }  # fmt: skip
    flags = ["-y", "-m", f"local/{setup.model}", "--name", "talk", "--tool-format", "tool"]
    flags += ["-t", "shell" if setup.tools else "none", "--stream" if setup.stream else "--no-stream"]

    def say(text):
        shown = run("gptme", *flags, text, folder=setup.folder, **env)
        return shown[shown.rfind("Assistant:") :]

    return say


serve(opened)
