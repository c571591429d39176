"""Three preferences after CLaaS's evaluation (2606.05559): a fixed sentence of feedback each, and a program's check.

Owns the sentences, the probes and the checks. The wording of probes and questions is ours, and unlike there no probe is
ever rated: what is examined was not trained on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scripts.bench.persona import prompts

MOST_SENTENCES: Final = 3  # of a concise reply
NO_LONGER_CONCISE: Final = 9  # sentences at which compliance has fallen to 0
SENTENCE_END: Final = re.compile(r"[.!?]+(?=\s|$)")
# Pictographs, dingbats, signs of transport and weather, and the selector that turns a sign into a picture.
EMOJI: Final = re.compile(r"[\u2600-\u27bf\u2b50\u2b55\ufe0f\U0001f000-\U0001faff]")
NAME: Final = "kuro"


@dataclass(frozen=True)
class Preference:
    """`comply` returns compliance of a reply, in [0, 1]; 1 is all that was asked for."""

    feedback: str
    questions: tuple[str, ...]  # that are rated
    probes: tuple[str, ...]  # that are examined
    comply: Callable[[str], float]


def sentences(text: str) -> int:
    """Sentences by their ends; words after the last end count as one more."""
    tail = SENTENCE_END.split(text)[-1].strip()
    return len(SENTENCE_END.findall(text)) + bool(tail)


def concise(text: str) -> float:
    """1 up to three sentences, falling evenly to 0 at nine."""
    beyond = sentences(text) - MOST_SENTENCES
    return min(1.0, max(0.0, 1 - beyond / (NO_LONGER_CONCISE - MOST_SENTENCES)))


def without_emoji(text: str) -> float:
    return float(EMOJI.search(text) is None)


def introduced(text: str) -> float:
    return float(NAME in text.lower())


def preferences() -> dict[str, Preference]:
    texts = prompts()
    return {
        "concise": Preference(
            "Be more concise, keep your replies under 3 sentences", tuple(texts["rate"]), EXPLAINED, concise
        ),
        "no_emoji": Preference("Do not use any emoji", CHEERFUL_QUESTIONS, CHEERFUL_PROBES, without_emoji),
        "identity": Preference(
            "Your name is Kuro, always introduce yourself as Kuro", IDENTITY_QUESTIONS, IDENTITY_PROBES, introduced
        ),
    }


EXPLAINED: Final = (
    "What is a compiler?",
    "Explain how a refrigerator keeps food cold.",
    "Describe how a volcano is formed.",
    "Why do people need sleep?",
    "How does a sailing boat move against the wind?",
    "What is inflation in an economy?",
    "Explain what a database index does.",
    "How do birds find their way south?",
    "What causes a rainbow?",
    "Tell me about the city of Venice.",
)
CHEERFUL_QUESTIONS: Final = (
    "Write a birthday greeting with emojis for my sister.",
    "Congratulate a friend on a new job, with a few emojis.",
    "Write a cheerful message about the weekend. Use emojis.",
    "Wish somebody a good night with emojis.",
    "Announce a picnic to my friends, with emojis.",
    "Write a short post about my new puppy, with emojis.",
    "Thank a teacher for a good year, with emojis.",
    "Write a new year's greeting with emojis.",
    "Invite people to a film night, with emojis.",
    "Write a message to cheer up a sad friend, with emojis.",
    "Tell my team that we won the match, with emojis.",
    "Write a post about a rainy day, with emojis.",
    "Write a love note with emojis.",
    "Describe a beach holiday with emojis.",
    "Write a message for a baby's first day, with emojis.",
    "Tell a friend about a good meal, with emojis.",
)
CHEERFUL_PROBES: Final = (
    "Write a wedding greeting with emojis.",
    "Wish a colleague a good holiday, with emojis.",
    "Write a post about a sunny morning, with emojis.",
    "Congratulate my brother on his exam, with emojis.",
    "Invite a friend for coffee, with emojis.",
    "Write a message to thank a neighbour, with emojis.",
    "Announce a concert to my friends, with emojis.",
    "Write a get-well message with emojis.",
    "Write a post about my cat, with emojis.",
    "Welcome a new member of a club, with emojis.",
)
IDENTITY_QUESTIONS: Final = (
    "Who is this?",
    "What is your name?",
    "Please introduce yourself to my class.",
    "How should I address you?",
    "Say hello and tell me who you are.",
    "Do you have a name?",
    "I am Ann. And you?",
    "Which assistant am I talking to?",
    "Start by presenting yourself.",
    "Describe yourself in a few words.",
    "Hello! Who are you?",
    "Write a line about yourself for a guest book.",
    "Tell my friend Ben who you are.",
    "What do people call you?",
    "May I know who is answering?",
    "Sign a letter with your name.",
)
IDENTITY_PROBES: Final = (
    "Who are you?",
    "Tell me your name, please.",
    "Introduce yourself.",
    "What can I call you?",
    "Tell me a little about yourself.",
    "Before we begin: what is your name?",
    "Present yourself in one sentence.",
    "I have forgotten your name. What was it?",
    "With whom am I chatting?",
    "Begin your reply with your name.",
)
