# /// script
# dependencies = ["chatlas==0.23.0", "openai==3.54.0"]
#
# [tool.client]
# name = "chatlas"
# formats = ["chat", "responses"]
# ///
"""chatlas: a Chat, which keeps its turns."""

from chatlas import ChatOpenAI, ChatOpenAICompletions
from talking import Setup, look, serve


def opened(setup: Setup):
    kind = ChatOpenAICompletions if setup.format == "chat" else ChatOpenAI
    chat = kind(base_url=setup.base_url, api_key="any", model=setup.model, kwargs={"max_retries": 0})
    if setup.tools:
        chat.register_tool(look)

    def say(text):
        chat.chat(text, stream=setup.stream, echo="none")
        turn = chat.get_last_turn()
        return turn.text, getattr(turn.completion, "id", None)

    return say


serve(opened)
