"""Ratings that go by a word: which one tells liked replies from disliked ones, and where a reply says it first.

Many tastes show in one token: "you", a line break, an exclamation mark. The critic of hidden states sees that late,
and then credits what leads to the token, too. Here each word and each kind of token is asked whether it stands in
a reply. The best one counts where ratings drawn at random have none as good. So it is compared with the best of all
words of each shuffle (max-T, Westfall and Young 1993). It earns a reply's whole rating at its first place. A disliked
word is pushed down there, which credit by hidden states never does. An end is not a word: what leads to it earns a part
of the rating. Owns that test and that credit. Pure numpy. Not here: hidden states (credit_assignment), how much the
looks of replies say (permutation_test).
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from config.languages import every, split_words
from trainer.lessons import critic
from trainer.mis_po import Floats

FEWEST: Final = 3  # replies with a word, and as many without, below which it is not asked
SHUFFLES: Final = 199
BY_CHANCE: Final = 0.01  # how often shuffled ratings may have a word as good
DECIDED: Final = 0.75  # the chance of a word at its first place, above which it was decided before
DIGIT, LINE_BREAK, SYMBOL = "a digit", "a line break", "a symbol"  # no word of a text has a space
BROKEN: Final = "\ufffd"  # stands for bytes that are not a whole character
MOST_PIECES: Final = 4  # bytes of a character in UTF-8, each a token at worst
KINDS: Final = (DIGIT, LINE_BREAK, SYMBOL)


class Mark(NamedTuple):
    """A word, or a kind of token, by which ratings go."""

    word: str
    sign: float  # 1: liked replies have it; -1: disliked ones do
    correlation: float  # of its presence with the ratings, without its sign
    by_chance: float  # how often shuffled ratings have a word as good

    def __str__(self) -> str:
        side = "liked" if self.sign > 0 else "disliked"
        closeness = f"r = {self.correlation:.2f}, by chance in {self.by_chance:.1%}"
        return f"{side} replies have {_public_name(self.word)} ({closeness})"


class LexicalCredit(NamedTuple):
    tokens: list[Floats]  # (T,) of each reply: T or −T where it says a mark first, 0 elsewhere
    marks: list[Mark]

    @property
    def is_disliked(self) -> bool:
        """Tell if these words are what disliked replies have; False where there are none."""
        return bool(self.marks) and self.marks[0].sign < 0

    @property
    def explained(self) -> float:
        """Share of the ratings' variance that the best mark explains; 0 where there is none."""
        return self.marks[0].correlation ** 2 if self.marks else 0.0

    @property
    def reason(self) -> str:
        return "; ".join(map(str, self.marks))


def credit(
    replies: Sequence[Sequence[int]],
    values: Sequence[float],
    group: Sequence[int],
    text_of: Callable[[Sequence[int]], str],
    *,
    chances: Sequence[Floats],
    chosen: Sequence[NDArray[np.bool_]] | None = None,
    least: float,
    seed: int,
) -> LexicalCredit:
    """Credit the word that the ratings go by, then the one that the replies without it go by; no marks: there is none.

    `values`: the advantage of each reply, whose sign is the rating. `group`: the same for replies of one conversation.
    `text_of`: the text of some tokens, empty for an end. `chances`: (T,) of each reply's tokens. `chosen`: (T,) of each
    reply, where the model had a choice; None: everywhere. `least`: the share of the ratings' variance that a word
    explains.
    """
    pieces = functools.cache(text_of)
    masks = chosen if chosen is not None else [np.ones(len(reply), bool) for reply in replies]
    places = [_first_places(reply, mask, pieces) for reply, mask in zip(replies, masks, strict=True)]
    tokens = [np.zeros(len(reply)) for reply in replies]
    marks: list[Mark] = []
    y, conversations = np.sign(values), critic.separate_if_few(np.array(group, np.int64))
    remainder = np.arange(len(replies))
    while True:
        some_places, some_y = [places[i] for i in remainder], y[remainder]
        mark = _find_mark(some_places, some_y, conversations[remainder], least, seed)
        if mark is None or (marks and mark.sign != marks[0].sign):
            break  # replies without a liked word are disliked for that, not for what they have
        has_mark = np.array([mark.word in each for each in some_places])
        firsts = {i: places[i][mark.word] for i in remainder[has_mark] if y[i] == mark.sign}
        if np.median([chances[i][place] for i, place in firsts.items()]) > DECIDED:
            break  # what is said before the word led to it, as "three steps:" does to a digit
        marks.append(mark)
        for i, place in firsts.items():
            tokens[i][place] = mark.sign * len(replies[i])
        remainder = remainder[~has_mark]
    return LexicalCredit(tokens, marks)


def _public_name(word: str) -> str:
    """Name a word for logs and events, which are not encrypted: only one that anybody's texts have."""
    if word in KINDS:
        return word
    is_plain = word in _plain_words() or not any(map(str.isalnum, word))
    return f"“{word}”" if is_plain else f"a word of {len(word)} letters"


@functools.cache
def _plain_words() -> frozenset[str]:
    """Words of the texts that come with rlproxy, in all its languages."""
    texts = (" ".join((each.text, *each.questions)) for each in every())
    return frozenset(word for text in texts for word in split_words(text.lower()))


def _first_places(
    reply: Sequence[int], chosen: NDArray[np.bool_], text_of: Callable[[Sequence[int]], str]
) -> dict[str, int]:
    """Where a reply has each word and each kind of token first, of what the model chose."""
    places: dict[str, int] = {}
    place = 0
    while place < len(reply):
        size = _character_size(reply, place, text_of)
        if chosen[place]:
            for word in _words(text_of(tuple(reply[place : place + size]))):
                places.setdefault(word, place)
        place += size
    return places


def _character_size(reply: Sequence[int], place: int, text_of: Callable[[Sequence[int]], str]) -> int:
    """How many tokens are whole characters from here on: one, or the pieces of one character."""
    sizes = range(1, min(MOST_PIECES, len(reply) - place) + 1)
    return next((size for size in sizes if BROKEN not in text_of(tuple(reply[place : place + size]))), 1)


def _words(text: str) -> list[str]:
    """Give the text of a token, and its kinds."""
    if BROKEN in text:
        return []
    words = [text.strip().lower()] if text.strip() else []
    is_of_kind = (
        any(c.isdigit() for c in text),
        "\n" in text,
        any(unicodedata.category(c) == "So" for c in text),
    )
    return words + [kind for kind, holds in zip(KINDS, is_of_kind, strict=True) if holds]


def _find_mark(
    places: Sequence[Mapping[str, int]], y: Floats, group: NDArray[np.int64], least: float, seed: int
) -> Mark | None:
    """The word that goes best with these ratings; None where it explains too little, or chance would have one."""
    columns = _presence(places)
    if not columns or min((y > 0).sum(), (y < 0).sum()) < FEWEST:
        return None
    features = np.array(list(columns), np.float64).T  # (R, W)
    features = (features - features.mean(0)) / features.std(0)
    correlations = _correlations(features, y)
    best = int(np.abs(correlations).argmax())
    strength = float(np.abs(correlations[best]))
    if strength**2 < least:
        return None
    shuffle = np.random.default_rng(seed)
    shuffled = [np.abs(_correlations(features, critic.deal(y, group, shuffle))).max() for _ in range(SHUFFLES)]
    by_chance = (1 + int((np.array(shuffled) >= strength - 1e-9).sum())) / (1 + SHUFFLES)
    if by_chance > BY_CHANCE:
        return None
    return Mark(list(columns.values())[best], float(np.sign(correlations[best])), strength, by_chance)


def _presence(places: Sequence[Mapping[str, int]]) -> dict[tuple[bool, ...], str]:
    """Which replies have a word, by the word; of words in the very same replies the first, kinds before words."""
    counts = Counter(word for each in places for word in each)
    candidates = [word for word in counts if FEWEST <= counts[word] <= len(places) - FEWEST]
    columns: dict[tuple[bool, ...], str] = {}
    for word in sorted(candidates, key=lambda word: (word not in KINDS, word)):
        columns.setdefault(tuple(word in each for each in places), word)
    return columns


def _correlations(features: Floats, y: Floats) -> Floats:
    """(W,) of each word with the ratings."""
    correlations: Floats = features.T @ ((y - y.mean()) / y.std()) / len(y)
    return correlations
