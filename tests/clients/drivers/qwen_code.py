# /// script
# [tool.client]
# name = "Qwen Code"
# formats = ["chat", "responses"]
# tool = { calls = "run_shell_command", arguments = { command = "echo seen {}", is_background = false } }
#
# [tool.client.npm]
# "@qwen-code/qwen-code" = "0.24.4"
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Qwen Code on the command line: a prompt, with `-c` for what follows."""

from talking import Setup, run, serve


def opened(setup: Setup):
    kind = "openai" if setup.format == "chat" else "openai-responses"
    flags = [
        "--openai-api-key",
        "any",
        "--openai-base-url",
        setup.base_url,
        "--auth-type",
        kind,
        "-m",
        setup.model,
        "-y",
    ]
    goes_on = []

    def say(text):
        shown = run("qwen", *flags, *goes_on, text, folder=setup.folder, HOME=str(setup.folder))
        goes_on[:] = ["-c"]
        return shown

    return say


serve(opened)
