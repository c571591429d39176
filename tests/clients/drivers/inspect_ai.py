# /// script
# dependencies = ["inspect-ai==0.3.285", "openai==3.54.0"]
#
# [tool.client]
# name = "Inspect"
# formats = ["chat", "responses"]
#
# [tool.client.lacks]
# id = "its messages have ids of its own"
# ///
"""Inspect: a model whose generate_loop runs its tools; its caller keeps the messages."""

from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model
from inspect_ai.tool import ToolDef
from talking import Setup, look, serve


def opened(setup: Setup):
    model = get_model(
        f"openai/{setup.model}", base_url=setup.base_url, api_key="any", memoize=False, streaming=setup.stream,
        responses_api=setup.format == "responses", config=GenerateConfig(max_retries=0),
    )  # fmt: skip
    tool = ToolDef(look_at, name="look", description="Looks at a place.", parameters={"place": "The place."})
    messages = []

    async def say(text):
        messages.append(ChatMessageUser(content=text))
        new, output = await model.generate_loop(messages, tools=[tool.as_tool()] if setup.tools else [])
        messages.extend(new)
        return output.completion

    return say


async def look_at(place: str) -> str:
    return look(place)


serve(opened)
