# /// script
# requires-python = ">=3.12"
# dependencies = ["openhands==1.16.0"]
#
# [tool.client]
# name = "OpenHands (CLI)"
# formats = ["chat"]
# tool = { calls = "terminal", arguments = { command = "echo seen {}", security_risk = "LOW", summary = "Looks" } }
#
# [tool.client.lacks]
# streamed = "it asks for whole answers"
# id = "it shows none"
# ///
"""OpenHands on the command line: `openhands --headless`, with `--resume --last` for what follows."""

from talking import Setup, run, serve


def opened(setup: Setup):
    env = {
        "HOME": str(setup.folder), "LLM_API_KEY": "any", "LLM_BASE_URL": setup.base_url,
        "LLM_MODEL": f"openai/{setup.model}", "OPENHANDS_SUPPRESS_BANNER": "1", "TTY_INTERACTIVE": "0",
    }  # fmt: skip
    goes_on = []

    def say(text):
        flags = ["--headless", "--override-with-envs", *goes_on]
        shown = run("openhands", *flags, "-t", text, folder=setup.folder, **env)
        goes_on[:] = ["--resume", "--last"]
        return shown

    return say


serve(opened)
