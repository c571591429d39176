# /// script
# dependencies = ["google-adk==2.13.0", "litellm==1.106.2", "mcp==2.3.0"]
#
# [tool.client]
# name = "Google ADK"
# formats = ["chat"]
#
# [tool.client.lacks]
# id = "its events have ids of their own"
# ///
"""Google's Agent Development Kit: an LlmAgent over LiteLLM, in a session in memory."""

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from talking import Setup, look, serve


async def opened(setup: Setup):
    model = LiteLlm(f"openai/{setup.model}", api_base=setup.base_url, api_key="any", num_retries=0)
    agent = LlmAgent(name="helper", model=model, instruction="Be brief.", tools=[look] if setup.tools else [])
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="me")
    config = RunConfig(streaming_mode=StreamingMode.SSE if setup.stream else StreamingMode.NONE)

    async def say(text):
        message, shown = types.Content(role="user", parts=[types.Part(text=text)]), ""
        async for event in runner.run_async(
            user_id="me", session_id=session.id, new_message=message, run_config=config
        ):
            if event.is_final_response() and not event.partial and event.content:
                shown = "".join(part.text or "" for part in event.content.parts)
        return shown

    return say


serve(opened)
