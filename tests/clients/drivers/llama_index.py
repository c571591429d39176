# /// script
# dependencies = [
#   "llama-index-llms-openai==0.8.3", "llama-index-llms-openai-like==0.8.1", "llama-index-core==0.14.25",
# ]
#
# [tool.client]
# name = "LlamaIndex"
# formats = ["chat", "responses"]
# ///
"""LlamaIndex: a FunctionAgent with a chat memory, over OpenAILike and OpenAIResponses."""

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from talking import Setup, look, serve


def opened(setup: Setup):
    given = {"model": setup.model, "api_base": setup.base_url, "api_key": "any", "max_retries": 0}
    if setup.format == "chat":
        llm = OpenAILike(**given, is_chat_model=True, is_function_calling_model=True, context_window=8000)
    else:
        llm = OpenAIResponses(**given, context_window=8000)
    tools = [FunctionTool.from_defaults(look)] if setup.tools else []
    agent = FunctionAgent(tools=tools, llm=llm, system_prompt="Be brief.", streaming=setup.stream)
    memory = ChatMemoryBuffer.from_defaults(token_limit=8000)

    async def say(text):
        run = agent.run(text, memory=memory)
        async for event in run.stream_events():
            if isinstance(event, AgentStream):
                pass
        done = await run
        raw = done.raw if isinstance(done.raw, dict) else done.raw.model_dump()
        return done.response.content, raw.get("id") or (raw.get("response") or {}).get("id")

    return say


serve(opened)
