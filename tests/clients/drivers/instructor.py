# /// script
# dependencies = ["instructor==1.17.0"]
#
# [tool.client]
# name = "Instructor"
# formats = ["chat"]
# answer = { says = '{"said": "{}"}' }
#
# [tool.client.lacks]
# tools = "its answers are an object; it runs no tools"
# rated = "it asks for JSON: where a program reads the answer, rlproxy takes no commands"
# ///
"""Instructor: an object of a pydantic model out of JSON mode; its caller keeps the history."""

import instructor
from openai import OpenAI
from pydantic import BaseModel
from talking import Setup, serve


class Said(BaseModel):
    said: str


def opened(setup: Setup):
    client = instructor.from_openai(
        OpenAI(base_url=setup.base_url, api_key="any", max_retries=0), mode=instructor.Mode.JSON
    )
    history = []

    def say(text):
        history.append({"role": "user", "content": text})
        request = {"model": setup.model, "messages": history, "max_retries": 1}
        if setup.stream:
            *_, said = client.chat.completions.create_partial(response_model=Said, **request)
            id = None
        else:
            said, answer = client.chat.completions.create_with_completion(response_model=Said, **request)
            id = answer.id
        history.append({"role": "assistant", "content": said.model_dump_json()})
        return said.said, id

    return say


serve(opened)
