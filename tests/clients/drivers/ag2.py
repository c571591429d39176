# /// script
# dependencies = ["ag2[openai]==1.2.1"]
#
# [tool.client]
# name = "AG2"
# formats = ["chat"]
#
# [tool.client.lacks]
# id = "its replies have no id of the completion"
# ///
"""AG2: an Agent whose replies are asked on."""

from ag2 import Agent
from ag2.config import OpenAIConfig
from talking import Setup, look, serve


def opened(setup: Setup):
    config = OpenAIConfig(
        model=setup.model, base_url=setup.base_url, api_key="any", max_retries=0, streaming=setup.stream
    )
    agent = Agent("helper", "Be brief.", config=config, tools=[look] if setup.tools else [])
    reply = None

    async def say(text):
        nonlocal reply
        reply = await (agent.ask(text) if reply is None else reply.ask(text))
        return reply.body

    return say


serve(opened)
