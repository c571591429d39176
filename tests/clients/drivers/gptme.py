# /// script
# dependencies = ["gptme==0.35.1"]
#
# [tool.client]
# name = "gptme"
# formats = ["chat"]
# rate = "rl:"
# tool = { calls = "shell", arguments = { command = "echo seen {}" } }
#
# [tool.client.side]
# asks = "a title, a summary after `/compact`"
# types = "/compact"
# answers = true
#
# [tool.client.lacks]
# id = "it shows none"
# ///
"""gptme in a terminal: with a prompt as its argument it would answer itself."""

import re

from talking import Setup, Terminal, serve

TITLE = re.compile("Auto-generated conversation name:.*")  # a notice, which may come before its prompt or after it


def opened(setup: Setup):
    env = {"HOME": str(setup.folder), "OPENAI_BASE_URL": setup.base_url, "GPTME_TELEMETRY_ENABLED": "false"}
    stream = "--stream" if setup.stream else "--no-stream"
    flags = ["--name", "talk", "-m", f"local/{setup.model}", "--tool-format", "tool", "-y", stream]
    terminal = Terminal("gptme", *flags, folder=setup.folder, ready="User:", **env)
    return lambda text: TITLE.sub("", terminal.say(text))


serve(opened)
