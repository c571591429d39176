# /// script
# dependencies = ["semantic-kernel==1.45.0"]
#
# [tool.client]
# name = "Semantic Kernel"
# formats = ["chat"]
# tool = { calls = "places-look", arguments = { place = "{}" } }
# ///
"""Semantic Kernel: a ChatCompletionAgent with a thread."""

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function
from talking import Setup, serve
from talking import look as looks


class Places:
    @kernel_function(name="look", description="Looks at a place.")
    def look(self, place: str) -> str:
        return looks(place)


def opened(setup: Setup):
    client = AsyncOpenAI(base_url=setup.base_url, api_key="any", max_retries=0)
    service = OpenAIChatCompletion(ai_model_id=setup.model, async_client=client)
    plugins = {"places": Places()} if setup.tools else {}
    agent = ChatCompletionAgent(service=service, name="helper", instructions="Be brief.", plugins=[*plugins.values()])
    if setup.tools:
        agent.kernel.add_plugin(Places(), plugin_name="places")
    thread = None

    async def say(text):
        nonlocal thread
        if setup.stream:
            shown, id = "", None
            async for piece in agent.invoke_stream(messages=text, thread=thread):
                shown, thread = shown + str(piece), piece.thread
                id = piece.content.metadata.get("id") or id
            return shown, id
        reply = await agent.get_response(messages=text, thread=thread)
        thread = reply.thread
        return str(reply), reply.content.metadata.get("id")

    return say


serve(opened)
