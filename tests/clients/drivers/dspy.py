# /// script
# dependencies = ["dspy==3.4.1"]
#
# [tool.client]
# name = "DSPy"
# formats = ["chat", "responses"]
# answer = { says = "[[ ## answer ## ]]\n{}\n\n[[ ## completed ## ]]" }
#
# [tool.client.lacks]
# streamed = "a module's calls are whole; only `streamify` streams, for showing"
# tools = "its modules write calls as text (ReAct); its requests offer no tools"
# rated = "what a person typed stands in a field of a prompt, beside text that may be anybody's"
# id = "a prediction has no id of the completion"
# ///
"""DSPy: a Predict module with a History, whose prompts are made of fields."""

import dspy
from talking import Setup, serve


class Talk(dspy.Signature):
    question: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    answer: str = dspy.OutputField()


def opened(setup: Setup):
    kind = "chat" if setup.format == "chat" else "responses"
    lm = dspy.LM(
        f"openai/{setup.model}", api_base=setup.base_url, api_key="any", model_type=kind, cache=False, num_retries=0
    )
    predict, turns = dspy.Predict(Talk), []

    def say(text):
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            answer = predict(question=text, history=dspy.History(messages=turns)).answer
        turns.append({"question": text, "answer": answer})
        return answer

    return say


serve(opened)
