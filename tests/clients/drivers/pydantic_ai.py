# /// script
# dependencies = ["pydantic-ai-slim[openai]==2.68.0"]
#
# [tool.client]
# name = "Pydantic AI"
# formats = ["chat", "responses"]
# ///
"""Pydantic AI: an agent whose runs are given the messages of those before."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from talking import Setup, look, serve


def opened(setup: Setup):
    kind = OpenAIChatModel if setup.format == "chat" else OpenAIResponsesModel
    model = kind(setup.model, provider=OpenAIProvider(base_url=setup.base_url, api_key="any"))
    agent = Agent(model, instructions="Be brief.", tools=[look] if setup.tools else [])
    history = []

    async def say(text):
        if setup.stream:
            async with agent.run_stream(text, message_history=history) as run:
                shown = "".join([piece async for piece in run.stream_text(delta=True)])
        else:
            run = await agent.run(text, message_history=history)
            shown = run.output
        history[:] = run.all_messages()
        return shown, history[-1].provider_response_id

    return say


serve(opened)
