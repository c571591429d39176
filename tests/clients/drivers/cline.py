# /// script
# [tool.client]
# name = "Cline (CLI)"
# formats = ["chat"]
# tool = { calls = "run_commands", arguments = { commands = ["echo seen {}"] } }
#
# [tool.client.npm]
# cline = "3.0.65"
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""Cline's command line as editors start it: the Agent Client Protocol over its standard input and output."""

import json
import os
import subprocess

from talking import Setup, run, serve


def opened(setup: Setup):
    home = {"HOME": str(setup.folder)}
    run(
        "cline",
        "auth",
        "-p",
        "openai",
        "-k",
        "any",
        "-m",
        setup.model,
        "-b",
        setup.base_url,
        folder=setup.folder,
        **home,
    )
    process = subprocess.Popen(
        ["cline", "--acp"], cwd=setup.folder, env={**os.environ, **home}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    shown = []

    def write(**message):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()

    def call(method, params):
        write(id=1, method=method, params=params)
        for line in process.stdout:
            told = json.loads(line)
            if told.get("method") == "session/request_permission":
                allowed = next(o["optionId"] for o in told["params"]["options"] if o["kind"].startswith("allow"))
                write(id=told["id"], result={"outcome": {"outcome": "selected", "optionId": allowed}})
            elif told.get("method") == "session/update":
                update = told["params"]["update"]
                if update["sessionUpdate"] == "agent_message_chunk":
                    shown.append(update["content"]["text"])
            elif told.get("id") == 1 and "method" not in told:
                if "error" in told:
                    raise RuntimeError(told["error"])
                return told["result"]
        raise RuntimeError("cline has ended")

    able = call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    import sys

    print(able, file=sys.stderr)
    session = call("session/new", {"cwd": str(setup.folder), "mcpServers": []})["sessionId"]

    def say(text):
        shown.clear()
        call("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})
        return "".join(shown)

    return say


serve(opened)
