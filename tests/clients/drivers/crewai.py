# /// script
# dependencies = ["crewai==1.15.30"]
#
# [tool.client]
# name = "CrewAI"
# formats = ["chat", "responses"]
#
# [tool.client.lacks]
# rated = "what is typed stands in a task's frame, as do a model's words where an agent delegates"
# "responses.tools" = "over Responses it asks for calls as text, and offers no tools"
# id = "its outputs have no id of the completion"
# ///
"""CrewAI: one Agent that is kicked off with the messages so far."""

import os

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", CREWAI_TRACING_ENABLED="false")

from crewai import LLM, Agent
from crewai.tools import tool
from talking import Setup, serve


@tool("look")
def look(place: str) -> str:
    """Looks at a place."""
    return f"seen {place}"


def opened(setup: Setup):
    api = "completions" if setup.format == "chat" else "responses"
    llm = LLM(
        f"openai/{setup.model}", base_url=setup.base_url, api_key="any", stream=setup.stream, api=api, max_retries=0
    )
    agent = Agent(role="Helper", goal="Help.", backstory="Be brief.", llm=llm, tools=[look] if setup.tools else [])
    messages = []

    def say(text):
        messages.append({"role": "user", "content": text})
        answer = agent.kickoff(messages).raw
        messages.append({"role": "assistant", "content": answer})
        return answer

    return say


serve(opened)
