# /// script
# [tool.client]
# name = "Continue (CLI)"
# formats = ["chat"]
# tool = { calls = "Bash", arguments = { command = "echo seen {}" } }
#
# [tool.client.npm]
# "@continuedev/cli" = "1.5.47"
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Continue's command line: `cn -p`, with `--resume` for what follows."""

from talking import Setup, run, serve

CONFIG = """name: me
version: 1.0.0
schema: v1
models:
  - name: rlproxy
    provider: openai
    model: {}
    apiBase: {}
    apiKey: any
    roles: [chat]
    capabilities: [tool_use]
"""


def opened(setup: Setup):
    (setup.folder / "config.yaml").write_text(CONFIG.format(setup.model, setup.base_url))
    goes_on = []

    def say(text):
        flags = ["-p", "--auto", "--config", str(setup.folder / "config.yaml"), *goes_on]
        env = {
            "HOME": str(setup.folder),
            "CONTINUE_TELEMETRY_ENABLED": "0",
            "CONTINUE_GLOBAL_DIR": str(setup.folder / "c"),
        }
        shown = run("cn", *flags, text, folder=setup.folder, **env)
        goes_on[:] = ["--resume"]
        return shown

    return say


serve(opened)
