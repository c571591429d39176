"""The gate's checks as questions that people understand. The trainer's own names stay beside it.

Owns these words for the command line, the page and the chat. docs/explain/how-it-learns.md explains each check. Not
here: the checks and their bounds (trainer.run.gate, trainer.run.ratings).
"""

from __future__ import annotations

from typing import Final

QUESTIONS: Final = {
    "contrast": "do the ratings differ?",
    "chance": "do the ratings show a taste, beyond chance?",
    "finite": "did training end in numbers?",
    "no_op": "did training change anything?",
    "replay": "did it learn what the run was about?",
    "margin": "does it tell good from bad answers that it has not seen?",
    "text_nll": "can it still read ordinary text?",
    "empty": "does it answer with words?",
    "looping": "do its answers end without going round in circles?",
    "repetition": "does it repeat itself no more than before?",
    "refusals": "does it refuse no more than before?",
    "length": "are its answers as long as before, or as asked for?",
    "topic": "are its answers still about the question?",
    "base_nll": "does it still make sense to the model that it came from?",
    "entropy": "does it still have more than one thing to say?",
}


def question(check: str) -> str:
    """The name itself where the check is of another time."""
    return QUESTIONS.get(check, check)
