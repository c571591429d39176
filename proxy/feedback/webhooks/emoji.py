"""Meanings of emoji: good, bad, a number of stars, or nothing.

Owns that one emoji has many spellings: skin tones, variation selectors, Slack's and Mattermost's names. Which mean what
is a setting (`webhooks.good`, `bad`, `stars`).
"""

from __future__ import annotations

import re
from typing import Final

from config.webhooks import WebhooksSection
from store.records import Scale

# U+FE0E and U+FE0F ask for text or picture; U+1F3FB to U+1F3FF are skin tones.
_SHADES: Final = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]|::?skin-tone-[1-6]|_(?:tone|skin_tone_)[1-6]")

# The names of those that the settings name by default; of a custom emoji the settings have the name.
_NAMES: Final = {
    "+1": "👍", "thumbsup": "👍", "thumbs_up": "👍", "heart": "❤", "tada": "🎉", "white_check_mark": "✅", "100": "💯",
    "clap": "👏", "fire": "🔥", "ok_hand": "👌", "-1": "👎", "thumbsdown": "👎", "thumbs_down": "👎", "hankey": "💩",
    "poop": "💩", "shit": "💩", "x": "❌", "face_vomiting": "🤮",
    "one": "1\u20e3", "two": "2\u20e3", "three": "3\u20e3", "four": "4\u20e3", "five": "5\u20e3",
}  # fmt: skip


def plain(emoji: str) -> str:
    """One spelling for all: no skin tone, no colons, the character instead of its name."""
    bare = _SHADES.sub("", emoji.strip()).strip(":")
    return _NAMES.get(bare, bare)


class Meaning:
    def __init__(self, settings: WebhooksSection) -> None:
        self._of: dict[str, tuple[float, Scale]] = {}
        self._of |= {plain(emoji): (1.0, "thumb") for emoji in settings.good}
        self._of |= {plain(emoji): (-1.0, "thumb") for emoji in settings.bad}
        self._of |= {plain(star): (index / 2 - 1, "stars") for index, star in enumerate(settings.stars)}

    def of(self, text: str) -> tuple[float, Scale] | None:
        """Meaning of one emoji, or of several with spaces between: those that mean something must mean the same."""
        meanings = {meaning for emoji in text.split(" ") if (meaning := self._of.get(plain(emoji))) is not None}
        return meanings.pop() if len(meanings) == 1 else None
