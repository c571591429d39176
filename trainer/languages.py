"""`python -m trainer.languages`: which languages prompts are in, and which of them a gate asks in.

Owns the detection, by py3langid, whose model comes with it: nothing is downloaded. It takes two seconds and 130 MB to
load, so the proxy asks a process of its own. Stdin has a JSON list of texts, stdout a line of JSON. One prompt is too
short to be sure of, so the shares of all of them count. Not here: what stands in a language (config.languages), which
words of a request a person typed (the proxy).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from config import languages

ENOUGH: Final = 0.25  # of the prompts, from which on the gate asks in a language
MEASURED: Final = 400  # characters of a prompt that are looked at
_QUOTED: Final = re.compile(r"`[^`\n]*`")
_CODE: Final = frozenset("\\/_{}=<>")  # a word with one of these is no word of a language
_LETTER: Final = re.compile(r"[^\W\d_]")


class LanguageChoice(NamedTuple):
    codes: tuple[str, ...]  # of config.languages, the most frequent first
    reason: str


def language_shares(texts: Iterable[str]) -> dict[str, float]:
    """Share of the prompts that is in each language, by its code: the mean of what the detector makes of each. Empty
    where no prompt has words."""
    identifier = _identifier()
    sums: Counter[str] = Counter()
    count = 0
    for text in texts:
        words = " ".join(word for word in _QUOTED.sub(" ", text[:MEASURED]).split() if _CODE.isdisjoint(word))
        if not _LETTER.search(words):
            continue
        count += 1
        for code, probability in identifier.rank(words):
            sums[code] += probability
    return {code: float(total) / count for code, total in sums.most_common() if total / count >= 0.005}


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def choose(shares: Mapping[str, float]) -> LanguageChoice:
    """The languages that a gate asks in, by the prompts' shares."""
    if not shares:
        return LanguageChoice((languages.DEFAULT,), "no prompt of this run has words to tell a language by")
    frequent = sorted(
        (code for code, share in shares.items() if share >= ENOUGH and code in languages.CODES),
        key=lambda code: -shares[code],
    )[: languages.MOST_LANGUAGES]
    first = max(shares, key=lambda code: shares[code])
    by_share = ", ".join(f"{share:.0%} {code}" for code, share in list(shares.items())[:3])
    reason = f"of the prompts {by_share}, by py3langid"
    if not frequent:
        return LanguageChoice(
            (languages.DEFAULT,), f"{reason}; there are no questions in {first}, so the gate asks in English"
        )
    return LanguageChoice(tuple(frequent), reason)


def main() -> int:
    choice = choose(language_shares(json.loads(sys.stdin.read())))
    print(json.dumps(choice._asdict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
