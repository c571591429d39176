"""`rlproxy chat`: a small chat at the terminal, to try a version, compare two, and rate with one key.

Owns the loop, the keys and what is shown. It is a client like any other: its answers are captured, and rated over
`/v1/feedback`. With `--vs` both answers are shown without saying whose they are; the pick is two ratings.

What is pasted is text, whatever it says: one message, and never a key or a command. Terminals mark it (bracketed
paste). Where one does not, lines that come at once are a paste. What is typed while an answer comes is not taken.
"""

from __future__ import annotations

import os
import random
import select
import sys
import termios
import tty
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from proxy.cli.http import Client, NoProxyAnswers, Refused
from proxy.conversation.user_text import PREFIX
from proxy.core.terminal import plain, styled

HELP: Final = "Ctrl-C stops an answer, /new starts over, Ctrl-D ends."
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
MARKS_ON, MARKS_OFF = "\x1b[?2004h", "\x1b[?2004l"  # of what is pasted
BEGINS, ENDS = "\x1b[200~", "\x1b[201~"
AT_ONCE_S: Final = 0.1  # nobody types the next key so soon


class Answer(NamedTuple):
    id: str
    text: str
    version: str


class Chat:
    def __init__(self, client: Client, model: str, version: str | None, vs: str | None, system: str | None) -> None:
        self._client = client
        self._model = model
        self._versions = [version or "live", *([vs] if vs else [])]
        self._system: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self._new()

    def _new(self) -> None:
        self._messages = list(self._system)
        self._session = f"chat-{uuid.uuid4().hex[:8]}"

    def run(self) -> None:
        """Until Ctrl-D, or Ctrl-C at the prompt."""
        who = " and ".join(self._versions)
        with _marked_pastes():
            _dim(f"{self._model}, {who}. {HELP}")
            while True:
                try:
                    said, pasted = _message()
                except (EOFError, KeyboardInterrupt):
                    print()
                    return
                if said and pasted and PREFIX.match(said):
                    _dim("what is pasted is no command, so nothing was sent: type it, or put a word before it")
                elif said == "/new":
                    self._new()
                    _dim("from the beginning")
                elif said:
                    self._tried(said)

    def _tried(self, said: str) -> None:
        try:
            (self._command if PREFIX.match(said) else self._turn)(said)
        except (Refused, NoProxyAnswers) as error:
            _not_taken()
            print(f"rlproxy: {error}", file=sys.stderr)

    def _command(self, said: str) -> None:
        """A `/rl` line, which rlproxy answers: one of them, whichever versions answer, and no part of the chat."""
        self._say([*self._messages, {"role": "user", "content": said}], self._versions[0], None)

    def _turn(self, said: str) -> None:
        messages = [*self._messages, {"role": "user", "content": said}]
        order = random.sample(self._versions, len(self._versions))  # who looks must not know which comes first
        answers = []
        for name, version in zip("AB", order, strict=False):
            if len(order) > 1:
                _dim(name, end=" ")
            # One of two is always bad: beside each other they say nothing of how a version is liked.
            answers.append(self._say(messages, version, "side" if len(order) > 1 else None))
        whole = [answer for answer in answers if answer is not None]
        if len(whole) < len(answers):
            return  # it was stopped: kept as far as it came, and not gone on from
        chosen = self._pick(whole) if len(whole) > 1 else self._rate(whole[0])
        self._messages = [*messages, {"role": "assistant", "content": chosen.text}]

    def _say(self, messages: list[dict[str, str]], version: str, turn: str | None) -> Answer | None:
        """Printed as it comes; None where it was stopped."""
        model = self._model if version == "live" else f"{self._model}@{version}"
        body = {"model": model, "messages": messages, "stream": True}
        id, pieces = "", list[str]()
        events = self._client.events(f"/s/{self._session}/v1/chat/completions", body, turn)
        try:
            for event in events:
                id = str(event.get("id") or id)
                piece = _piece(event)
                pieces.append(piece)
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            _not_taken()
            _dim(" (stopped)")
            return None
        except (Refused, NoProxyAnswers):
            if pieces:
                print()
            raise
        finally:
            events.close()
        print()
        return Answer(id, "".join(pieces), version)

    def _rate(self, answer: Answer) -> Answer:
        key = _key("g good, b bad, Enter goes on", "gb")
        if key:
            word = {"g": "good", "b": "bad"}[key]
            self._feedback(answer, word)
            _dim(f"rated {word}")
        return answer

    def _pick(self, answers: list[Answer]) -> Answer:
        key = _key("a or b is better, Enter: neither", "ab")
        names = ", ".join(f"{name} was {answer.version}" for name, answer in zip("AB", answers, strict=True))
        _dim(names)
        if not key:
            return answers[0]
        better, worse = answers if key == "a" else reversed(answers)
        self._feedback(better, "good")
        self._feedback(worse, "bad")
        return better

    def _feedback(self, answer: Answer, word: str) -> None:
        self._client.ask("POST", "/v1/feedback", {"completion_id": answer.id, "rating": word, "source": "cli"})


def _dim(text: str, end: str = "\n") -> None:
    """Words of ours, beside those of the model."""
    print(f"{DIM}{plain(text)}{PLAIN}", end=end, file=styled(sys.stdout), flush=True)


def _piece(event: dict[str, Any]) -> str:
    if error := event.get("error"):
        raise Refused(str(error.get("message") if isinstance(error, dict) else error))
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


@contextmanager
def _marked_pastes() -> Iterator[None]:
    """The terminal marks what is pasted, and does not show the marks; afterwards it is as before."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~termios.ECHOCTL
    out = styled(sys.stdout)
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        print(MARKS_ON, end="", file=out, flush=True)
        yield
    finally:
        print(MARKS_OFF, end="", file=out, flush=True)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _message() -> tuple[str, bool]:
    """What was typed up to Enter, or pasted, with all its lines; and whether some of it was pasted."""
    line = input("> ")
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)  # a last line without its end is there only so
        rest = _at_once(descriptor)
        while line.count(BEGINS) + rest.count(BEGINS) > line.count(ENDS) + rest.count(ENDS):
            if not (more := os.read(descriptor, 65536)):
                break
            rest += more.decode("utf-8", "replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
    said = f"{line}\n{rest}" if rest else line
    return said.replace(BEGINS, "").replace(ENDS, "").strip(), bool(rest) or BEGINS in said


def _at_once(descriptor: int) -> str:
    """All that is there, and that comes without a pause."""
    found = bytearray()
    while select.select([descriptor], [], [], AT_ONCE_S)[0] and (more := os.read(descriptor, 65536)):
        found += more
    return found.decode("utf-8", "replace")


def _not_taken() -> None:
    """Forget what was typed, or pasted, while there was something else to see."""
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _key(prompt: str, keys: str) -> str:
    """One key without Enter, if it is one of these; else "". The terminal is as before afterwards.

    What came before the prompt does not count, nor does a key that others follow at once: that is a paste.
    """
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSAFLUSH)
        _dim(prompt, end=" ")
        pressed = (os.read(descriptor, 1).decode("utf-8", "replace") + _at_once(descriptor)).lower()
    except KeyboardInterrupt:
        pressed = ""
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
    print(f"\r{' ' * 40}\r", end="", file=styled(sys.stdout), flush=True)
    return pressed if len(pressed) == 1 and pressed in keys else ""
