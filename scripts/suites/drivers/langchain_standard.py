"""langchain-tests' standard tests of a chat model, by four classes of LangChain's: pytest runs this file.

The server is in SUITE_URL, its model in SUITE_MODEL. What a model of this size cannot know is not claimed.
"""

from __future__ import annotations

import os

from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL, MODEL = os.environ["SUITE_URL"], os.environ["SUITE_MODEL"]
LONGEST = 96  # tokens of an answer


class _Standard(ChatModelIntegrationTests):
    has_tool_choice = True

    @property
    def chat_model_params(self) -> dict:
        return {"model": MODEL, "temperature": 0}


class TestChatOpenAI(_Standard):
    chat_model_class = ChatOpenAI

    @property
    def chat_model_params(self) -> dict:
        members = {"base_url": f"{URL}/v1", "api_key": "any", "max_retries": 0, "timeout": 120}
        # LangChain itself asks for the usage of a stream only at OpenAI's own address.
        return {**super().chat_model_params, **members, "max_tokens": LONGEST, "stream_usage": True}


class TestResponses(TestChatOpenAI):
    @property
    def chat_model_params(self) -> dict:
        return {**super().chat_model_params, "use_responses_api": True}


class TestChatAnthropic(_Standard):
    chat_model_class = ChatAnthropic

    @property
    def chat_model_params(self) -> dict:
        members = {"base_url": URL, "api_key": "any", "max_retries": 0, "timeout": 120}
        return {**super().chat_model_params, **members, "max_tokens": LONGEST}


class TestChatOllama(_Standard):
    chat_model_class = ChatOllama

    @property
    def chat_model_params(self) -> dict:
        return {**super().chat_model_params, "base_url": URL, "num_predict": LONGEST}
