# /// script
# [tool.client]
# name = "GitHub Copilot CLI"
# formats = ["chat", "responses", "messages"]
# tool = { calls = "bash", arguments = { command = "echo seen {}", description = "Looks" } }
#
# [tool.client.npm]
# "@github/copilot" = "1.0.102"
#
# [tool.client.side]
# asks = "a summary when the context is full, a subagent's steps"
# tokens = 58000
#
# [tool.client.side.tool]
# calls = "task"
# arguments = { agent_type = "explore", name = "dig", description = "digs", prompt = "Dig into {}, and tell me." }
#
# [tool.client.lacks]
# "messages.whole" = "over Messages it always streams"
# id = "it shows none"
# ///
"""GitHub's Copilot on the command line, with a model of one's own: `copilot -p`, with `--continue` for what follows."""

from talking import Setup, run, serve


def opened(setup: Setup):
    env = {
        "HOME": str(setup.folder), "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_API_KEY": "any", "COPILOT_MODEL": setup.model,
        "COPILOT_PROVIDER_TYPE": "anthropic" if setup.format == "messages" else "openai",
        "COPILOT_PROVIDER_BASE_URL": setup.url if setup.format == "messages" else setup.base_url,
        "COPILOT_PROVIDER_WIRE_API": "responses" if setup.format == "responses" else "completions",
    }  # fmt: skip
    if setup.side:
        env["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] = "60000"
    streams = ["--stream", "on" if setup.stream else "off"]
    goes_on = []

    def say(text):
        flags = ["--allow-all-tools", "--allow-all-paths", "--silent", *streams, *goes_on]
        shown = run("copilot", *flags, "-p", text, folder=setup.folder, **env)
        goes_on[:] = ["--continue"]
        return shown

    return say


serve(opened)
