# /// script
# dependencies = ["haystack-ai==3.4.0"]
#
# [tool.client]
# name = "Haystack"
# formats = ["chat", "responses"]
#
# [tool.client.lacks]
# "chat.id" = "what it keeps of a chat completion has no id"
# ///
"""Haystack: an Agent over its OpenAI generators, given the messages of before."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from talking import Setup, look, serve


def opened(setup: Setup):
    kind = OpenAIChatGenerator if setup.format == "chat" else OpenAIResponsesChatGenerator
    model = kind(
        model=setup.model, api_base_url=setup.base_url, api_key=Secret.from_token("any"), max_retries=0,
        streaming_callback=(lambda chunk: None) if setup.stream else None,
    )  # fmt: skip
    agent = Agent(chat_generator=model, tools=[create_tool_from_function(look)] if setup.tools else [])
    agent.warm_up()
    history = []

    def say(text):
        history[:] = agent.run(messages=[*history, ChatMessage.from_user(text)])["messages"]
        return history[-1].text, history[-1].meta.get("id")

    return say


serve(opened)
