"""LlamaIndex's structured output: `python llamaindex.py URL MODEL` prints what sdks.py prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def _structured(llm: OpenAILike) -> None:
    prompt = PromptTemplate("Ann is 7 years old. Who is {person}?")
    assert isinstance(llm.structured_predict(Person, prompt, person="she"), Person)


def _structured_llm(llm: OpenAILike) -> None:
    assert isinstance(llm.as_structured_llm(Person).complete("Ann is 7 years old.").raw, Person)


def _complete(llm: OpenAILike) -> None:
    assert str(llm.complete("Say hello."))


def _stream(llm: OpenAILike) -> None:
    assert list(llm.stream_complete("Say hello."))[-1].text


CALLS: dict[str, Callable[[OpenAILike], Any]] = {
    "structured_predict": _structured,
    "as_structured_llm": _structured_llm,
    "complete": _complete,
    "stream_complete": _stream,
}


def main() -> None:
    llm = OpenAILike(
        model=sys.argv[2], api_base=f"{sys.argv[1]}/v1", api_key="any", is_chat_model=True,
        is_function_calling_model=True, max_tokens=96, max_retries=0, timeout=120, temperature=0,
    )  # fmt: skip
    outcomes = {}
    for name, function in CALLS.items():
        try:
            function(llm)
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"[:300]
        else:
            outcomes[name] = "passed"
    print(json.dumps(outcomes, ensure_ascii=False))


if __name__ == "__main__":
    main()
