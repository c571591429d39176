# /// script
# dependencies = ["agent-framework-openai==1.17.0"]
#
# [tool.client]
# name = "Microsoft Agent Framework"
# formats = ["chat", "responses"]
# ///
"""Microsoft's Agent Framework: an Agent with a session."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from openai import AsyncOpenAI
from talking import Setup, look, serve


def opened(setup: Setup):
    kind = OpenAIChatCompletionClient if setup.format == "chat" else OpenAIChatClient
    client = kind(model=setup.model, async_client=AsyncOpenAI(base_url=setup.base_url, api_key="any", max_retries=0))
    agent = Agent(client, instructions="Be brief.", tools=[look] if setup.tools else [])
    session = agent.create_session()

    async def say(text):
        if setup.stream:
            run = agent.run(text, session=session, stream=True)
            async for _ in run:
                pass
            answer = await run.get_final_response()
        else:
            answer = await agent.run(text, session=session)
        return answer.text, answer.response_id

    return say


serve(opened)
