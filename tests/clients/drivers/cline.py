# /// script
# dependencies = ["pyte==0.8.2"]
#
# [tool.client]
# name = "Cline (CLI)"
# formats = ["chat"]
# tool = { calls = "run_commands", arguments = { commands = ["echo seen {}"] } }
#
# [tool.client.npm]
# cline = "3.0.65"
#
# [tool.client.side]
# asks = "a summary after `/compact`, a subagent's steps"
# types = "/compact"
#
# [tool.client.side.tool]
# calls = "spawn_agent"
# arguments = { systemPrompt = "You dig.", task = "Dig into {}, and tell what is there." }
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Cline in a terminal: only there it goes on with a session."""

from talking import Setup, Terminal, run, serve


def opened(setup: Setup):
    home = {"HOME": str(setup.folder), "CLINE_TELEMETRY_DISABLED": "1"}
    account = ["-p", "openai-compatible", "-k", "any", "-m", setup.model, "-b", setup.base_url]
    run("cline", "auth", *account, folder=setup.folder, **home)
    flags = ["-i", "-P", "openai-compatible", "-m", setup.model]
    offer = "any other key to close"  # of a subscription; it comes late on a busy machine
    terminal = Terminal("cline", *flags, folder=setup.folder, ready=offer, draws=True, quiet_s=10.0, **home)
    terminal.press("\x1b", ready="(Tab)")
    return terminal.say


serve(opened)
