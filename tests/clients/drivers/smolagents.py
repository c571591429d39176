# /// script
# dependencies = ["smolagents[openai]==1.26.0"]
#
# [tool.client]
# name = "smolagents"
# formats = ["chat"]
# answer = { calls = "final_answer", arguments = { answer = "{}" } }
#
# [tool.client.lacks]
# rated = "what is typed comes in one text with the last tool's result, where anybody's words may stand"
# id = "it shows none"
# ///
"""smolagents: a ToolCallingAgent, whose answers are calls of its tool final_answer."""

from smolagents import OpenAIModel, ToolCallingAgent, tool
from talking import Setup, serve


@tool
def look(place: str) -> str:
    """Looks at a place.

    Args:
        place: The place to look at.
    """
    return f"seen {place}"


def opened(setup: Setup):
    model = OpenAIModel(setup.model, api_base=setup.base_url, api_key="any")
    agent = ToolCallingAgent([look] if setup.tools else [], model, max_steps=4, stream_outputs=setup.stream)
    first = True

    def say(text):
        nonlocal first
        answer = agent.run(text, reset=first)
        first = False
        return str(answer)

    return say


serve(opened)
