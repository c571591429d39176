# /// script
# dependencies = ["openai==3.54.0"]
#
# [tool.client]
# name = "openai (Python)"
# formats = ["chat", "responses"]
# ///
"""OpenAI's SDK for Python; its caller keeps the history."""

import json

from openai import OpenAI
from talking import LOOK, Setup, look, serve


def opened(setup: Setup):
    client = OpenAI(base_url=setup.base_url, api_key="any", max_retries=0)
    history = []

    def chat(text):
        history.append({"role": "user", "content": text})
        more = {"tools": [{"type": "function", "function": LOOK}]} if setup.tools else {}
        while True:
            if setup.stream:
                with client.chat.completions.stream(model=setup.model, messages=history, **more) as stream:
                    answer = stream.get_final_completion()
            else:
                answer = client.chat.completions.create(model=setup.model, messages=history, **more)
            message = answer.choices[0].message
            history.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
            if not message.tool_calls:
                return message.content, answer.id
            for call in message.tool_calls:
                found = look(**json.loads(call.function.arguments))
                history.append({"role": "tool", "tool_call_id": call.id, "content": found})

    def responses(text):
        history.append({"role": "user", "content": text})
        more = {"tools": [{"type": "function", **LOOK, "strict": False}]} if setup.tools else {}
        while True:
            if setup.stream:
                with client.responses.stream(model=setup.model, input=history, **more) as stream:
                    answer = stream.get_final_response()
            else:
                answer = client.responses.create(model=setup.model, input=history, **more)
            history.extend(item.model_dump(exclude_none=True) for item in answer.output)
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return answer.output_text, answer.id
            for call in calls:
                found = look(**json.loads(call.arguments))
                history.append({"type": "function_call_output", "call_id": call.call_id, "output": found})

    return chat if setup.format == "chat" else responses


serve(opened)
