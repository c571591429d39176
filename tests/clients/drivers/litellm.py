# /// script
# dependencies = ["litellm==1.106.2", "mcp==2.3.0"]
#
# [tool.client]
# name = "LiteLLM"
# formats = ["chat", "responses"]
#
# [tool.client.lacks]
# "responses.streamed" = "for a model that it does not know it asks for a whole answer, and makes the stream itself"
# ///
"""LiteLLM's SDK: completion and responses; its caller keeps the history."""

import json

import litellm
from talking import LOOK, Setup, look, serve


def opened(setup: Setup):
    to = {"model": f"openai/{setup.model}", "api_base": setup.base_url, "api_key": "any", "num_retries": 0}
    history = []

    def chat(text):
        history.append({"role": "user", "content": text})
        more = {"tools": [{"type": "function", "function": LOOK}]} if setup.tools else {}
        while True:
            answer = litellm.completion(messages=history, stream=setup.stream, **to, **more)
            if setup.stream:
                answer = litellm.stream_chunk_builder(list(answer), messages=history)
            message = answer.choices[0].message
            history.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content, answer.id
            for call in message.tool_calls:
                found = look(**json.loads(call.function.arguments))
                history.append({"role": "tool", "tool_call_id": call.id, "content": found})

    def responses(text):
        history.append({"role": "user", "content": text})
        more = {"tools": [{"type": "function", **LOOK}]} if setup.tools else {}
        while True:
            answer = litellm.responses(input=history, stream=setup.stream, **to, **more)
            if setup.stream:
                answer = [event.response for event in answer if event.type == "response.completed"][-1]
            items = [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in answer.output]
            history.extend(items)
            calls = [item for item in items if item["type"] == "function_call"]
            if not calls:
                said = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
                return "".join(said), answer.id
            for call in calls:
                found = look(**json.loads(call["arguments"]))
                history.append({"type": "function_call_output", "call_id": call["call_id"], "output": found})

    return chat if setup.format == "chat" else responses


serve(opened)
