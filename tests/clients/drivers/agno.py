# /// script
# dependencies = ["agno==3.1.10", "openai==3.54.0"]
#
# [tool.client]
# name = "Agno"
# formats = ["chat", "responses"]
#
# [tool.client.lacks]
# id = "its runs have ids of their own"
# ///
"""Agno: an Agent with a session, which adds its history."""

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAILike, OpenAIResponses
from talking import Setup, look, serve


def opened(setup: Setup):
    kind = OpenAILike if setup.format == "chat" else OpenAIResponses
    model = kind(id=setup.model, base_url=setup.base_url, api_key="any")
    agent = Agent(
        model=model, tools=[look] if setup.tools else [], db=InMemoryDb(), session_id=setup.folder.name + setup.url,
        add_history_to_context=True, num_history_runs=10, telemetry=False,
    )  # fmt: skip

    def say(text):
        if setup.stream:
            return "".join(event.content or "" for event in agent.run(text, stream=True) if hasattr(event, "content"))
        return agent.run(text).content

    return say


serve(opened)
