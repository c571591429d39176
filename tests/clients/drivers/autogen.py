# /// script
# dependencies = ["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"]
#
# [tool.client]
# name = "AutoGen"
# formats = ["chat"]
#
# [tool.client.lacks]
# id = "its messages have no id of the completion"
# ///
"""AutoGen: an AssistantAgent that reflects on what its tool brought, without tools in that request."""

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from talking import Setup, look, serve

INFO = {
    "vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False,
}  # fmt: skip


def opened(setup: Setup):
    model = OpenAIChatCompletionClient(
        model=setup.model, base_url=setup.base_url, api_key="any", max_retries=0, model_info=INFO
    )
    more = {"tools": [look], "reflect_on_tool_use": True} if setup.tools else {}
    agent = AssistantAgent("helper", model, system_message="Be brief.", model_client_stream=setup.stream, **more)

    async def say(text):
        return (await agent.run(task=text)).messages[-1].to_text()

    return say


serve(opened)
