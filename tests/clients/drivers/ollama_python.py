# /// script
# dependencies = ["ollama==0.6.3"]
#
# [tool.client]
# name = "ollama (Python)"
# formats = ["ollama"]
#
# [tool.client.lacks]
# id = "answers of Ollama's API have no id; the header `x-rl-completion-id` has it"
# ///
"""Ollama's own client for Python; its caller keeps the history."""

import ollama
from talking import Setup, look, serve


def opened(setup: Setup):
    client = ollama.Client(host=setup.url)
    history = []

    def say(text):
        history.append({"role": "user", "content": text})
        more = {"tools": [look]} if setup.tools else {}
        while True:
            answer = client.chat(model=setup.model, messages=history, stream=setup.stream, **more)
            parts = list(answer) if setup.stream else [answer]
            said = "".join(part.message.content or "" for part in parts)
            calls = [call for part in parts for call in part.message.tool_calls or ()]
            history.append({"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})})
            if not calls:
                return said
            for call in calls:
                found = look(**call.function.arguments)
                history.append({"role": "tool", "tool_name": call.function.name, "content": found})

    return say


serve(opened)
