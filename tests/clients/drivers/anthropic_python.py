# /// script
# dependencies = ["anthropic==2.12.0"]
#
# [tool.client]
# name = "anthropic (Python)"
# formats = ["messages"]
# ///
"""Anthropic's SDK for Python; its caller keeps the history."""

from anthropic import Anthropic
from talking import LOOK, Setup, look, serve


def opened(setup: Setup):
    client = Anthropic(base_url=setup.url, api_key="any", max_retries=0)
    history = []

    def say(text):
        history.append({"role": "user", "content": text})
        tool = {"name": "look", "description": LOOK["description"], "input_schema": LOOK["parameters"]}
        request = {"model": setup.model, "max_tokens": 1000, **({"tools": [tool]} if setup.tools else {})}
        while True:
            if setup.stream:
                with client.messages.stream(messages=history, **request) as stream:
                    answer = stream.get_final_message()
            else:
                answer = client.messages.create(messages=history, **request)
            history.append({"role": "assistant", "content": answer.content})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text"), answer.id
            results = [{"type": "tool_result", "tool_use_id": c.id, "content": look(**c.input)} for c in calls]
            history.append({"role": "user", "content": results})

    return say


serve(opened)
