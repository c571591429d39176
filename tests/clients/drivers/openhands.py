# /// script
# requires-python = ">=3.12"
# dependencies = ["openhands==1.16.0"]
#
# [tool.client]
# name = "OpenHands (CLI)"
# formats = ["chat"]
# tool = { calls = "terminal", arguments = { command = "echo seen {}", security_risk = "LOW", summary = "Looks" } }
#
# [tool.client.side]
# asks = "a summary of what lies back, a subagent's steps"
#
# [tool.client.side.tool]
# calls = "task"
#
# [tool.client.side.tool.arguments]
# subagent_type = "general-purpose"
# description = "digs"
# prompt = "Dig into {}, and tell what is there."
# security_risk = "LOW"
# summary = "Digs"
#
# [tool.client.lacks]
# streamed = "it asks for whole answers"
# id = "it shows none"
# ///
"""OpenHands on the command line: `openhands --headless`, with `--resume --last` for what follows."""

import sys

from talking import Setup, run, serve

# Its settings as it saves them, but for the number of events of which it makes a summary.
SUMS_UP_EARLY = """
import sys
from openhands_cli.stores.agent_store import AgentStore
store = AgentStore()
settings = {"llm_model": sys.argv[1], "llm_base_url": sys.argv[2]}
agent = store.create_and_save_from_settings("any", settings)
condenser = agent.condenser.model_copy(update={"max_size": 11, "keep_first": 1})
store.save(agent.model_copy(update={"condenser": condenser, "critic": None}))
"""


def opened(setup: Setup):
    env = {
        "HOME": str(setup.folder), "LLM_API_KEY": "any", "LLM_BASE_URL": setup.base_url,
        "LLM_MODEL": f"openai/{setup.model}", "OPENHANDS_SUPPRESS_BANNER": "1", "TTY_INTERACTIVE": "0",
    }  # fmt: skip
    if setup.side:
        made = [env["LLM_MODEL"], env["LLM_BASE_URL"]]
        run(sys.executable, "-c", SUMS_UP_EARLY, *made, folder=setup.folder, **env)
    goes_on = []

    def say(text):
        flags = ["--headless", "--override-with-envs", *goes_on]
        shown = run("openhands", *flags, "-t", text, folder=setup.folder, **env)
        goes_on[:] = ["--resume", "--last"]
        return shown

    return say


serve(opened)
