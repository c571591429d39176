# /// script
# dependencies = ["strands-agents[openai]==1.62.0"]
#
# [tool.client]
# name = "Strands Agents"
# formats = ["chat", "responses"]
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "its results have no id of the completion"
# ///
"""Strands Agents: an Agent, which keeps its messages."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel
from talking import Setup, serve
from talking import look as looks


@tool
def look(place: str) -> str:
    """Looks at a place."""
    return looks(place)


def opened(setup: Setup):
    kind = OpenAIModel if setup.format == "chat" else OpenAIResponsesModel
    model = kind(client_args={"base_url": setup.base_url, "api_key": "any", "max_retries": 0}, model_id=setup.model)
    agent = Agent(model, tools=[look] if setup.tools else [], callback_handler=None)
    return lambda text: str(agent(text)).strip()


serve(opened)
