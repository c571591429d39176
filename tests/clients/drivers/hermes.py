# /// script
# dependencies = ["hermes-agent==0.19.0", "pyte==0.8.2"]
#
# [tool.client]
# name = "Hermes Agent"
# formats = ["chat"]
# tool = { calls = "terminal", arguments = { command = "echo seen {}" } }
#
# [tool.client.side]
# asks = "a title, reviews of the conversation"
# rate = "rl:"
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Hermes on the command line: `hermes chat -q`, with `--continue` for what follows."""

from talking import Setup, Terminal, run, serve

CONFIG = """model:
  default: {}
  provider: custom
  base_url: {}
  api_key: any
memory:
  nudge_interval: 2
skills:
  creation_nudge_interval: 2
"""


def opened(setup: Setup):
    there = setup.folder / ".hermes"
    there.mkdir()
    (there / "config.yaml").write_text(CONFIG.format(setup.model, setup.base_url))
    if setup.side:  # alone, a question ends before what is asked after it
        there = {"folder": setup.folder, "HOME": str(setup.folder)}
        terminal = Terminal("hermes", "chat", "--cli", "--yolo", ready="❯", draws=True, quiet_s=8.0, **there)
        terminal.ready = "✓"  # below it, for how long it has had nothing to do
        return terminal.say
    goes_on = []

    def say(text):
        flags = ["-Q", "--yolo", *goes_on]
        shown = run("hermes", "chat", *flags, "-q", text, folder=setup.folder, HOME=str(setup.folder))
        goes_on[:] = ["--continue"]
        return shown

    return say


serve(opened)
