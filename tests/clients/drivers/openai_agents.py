# /// script
# dependencies = ["openai-agents==0.24.0"]
#
# [tool.client]
# name = "OpenAI Agents SDK (Python)"
# formats = ["chat", "responses"]
#
# [tool.client.lacks]
# "chat.id" = "its chat model shows `__fake_id__`"
# ///
"""OpenAI's Agents SDK for Python: an agent with a function tool, run and streamed."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from talking import Setup, look, serve

set_tracing_disabled(True)


def opened(setup: Setup):
    client = AsyncOpenAI(base_url=setup.base_url, api_key="any", max_retries=0)
    kind = OpenAIChatCompletionsModel if setup.format == "chat" else OpenAIResponsesModel
    tools = [function_tool(look)] if setup.tools else []
    model = kind(model=setup.model, openai_client=client)
    agent = Agent(name="Helper", instructions="Be brief.", model=model, tools=tools, model_settings=ModelSettings())
    history = []

    async def say(text):
        asked = [*history, {"role": "user", "content": text}]
        if setup.stream:
            run = Runner.run_streamed(agent, asked)
            async for _ in run.stream_events():
                pass
        else:
            run = await Runner.run(agent, asked)
        history[:] = run.to_input_list()
        return run.final_output, run.last_response_id if setup.format == "responses" else None

    return say


serve(opened)
