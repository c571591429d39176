# /// script
# dependencies = ["langchain-openai==1.7.3", "langchain==1.4.7"]
#
# [tool.client]
# name = "LangChain (Python)"
# formats = ["chat", "responses"]
# ///
"""LangChain for Python: ChatOpenAI in an agent of LangGraph, which keeps the messages."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from talking import Setup, look, serve


def opened(setup: Setup):
    model = ChatOpenAI(
        model=setup.model, base_url=setup.base_url, api_key="any", max_retries=0, streaming=setup.stream,
        use_responses_api=setup.format == "responses",
    )  # fmt: skip
    agent = create_agent(model, [look] if setup.tools else [], checkpointer=InMemorySaver())

    def say(text):
        asked, thread = {"messages": [{"role": "user", "content": text}]}, {"configurable": {"thread_id": "1"}}
        answer = agent.invoke(asked, thread)["messages"][-1]
        id = answer.response_metadata.get("id") or answer.id
        return answer.text, None if id.startswith("lc_run") else id  # its own, where the completion's is dropped

    return say


serve(opened)
