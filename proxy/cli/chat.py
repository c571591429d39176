"""`rlproxy chat`: a small chat at the terminal, to try a version, compare two, and rate with one letter.

Owns the loop, the letters and what is shown. It is a client like any other: its answers are captured, and rated over
`/v1/feedback`. With `--vs` both answers are shown without saying whose they are; the pick is two ratings.

There is one prompt. A line of one letter rates; every other line is the next message, so words that begin with such a
letter rate nothing. What is pasted is text, whatever it says: one message, and never a letter or a command. Terminals
mark it (bracketed paste). Where one does not, lines that come at once are a paste. What is typed while an answer comes
is not taken.
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import sys
import termios
import textwrap
import tty
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from proxy.cli.http import HomeClient
from proxy.client import Refused, Unreachable
from proxy.conversation.first_words import quote_text
from proxy.conversation.user_text import PREFIX
from proxy.core.terminal import escape_controls, styled

HELP: Final = """\
Type a message and Enter. After an answer, these are a line of their own:
  g         the answer was good
  b         it was bad; you are asked why, and Enter gives no reason
  a or b    with --vs: which of the two is better; Enter: neither
  /new      starts a new conversation
  /rl ...   a command of rlproxy, such as /rl undo; /rl help lists them
  /help     shows this
Ctrl-C stops an answer, which can be rated, too; Ctrl-D ends the chat.
A space before g, a or b sends the letter to the model; the same goes for /words."""
SHORT: Final = "/help lists the keys, Ctrl-C stops an answer, Ctrl-D ends."
RATE: Final = "g good, b bad, or write on"
RATE_STOPPED: Final = "stopped, and not gone on from: g good, b bad, or write on"
PICK: Final = "a or b is better, Enter: neither, or write on"
REASON_PROMPT: Final = "why? (Enter: no reason) "
NONE: Final = "there is no answer here to rate, so nothing was sent; put a space before it to send the letter"
WORDS: Final = {"g": "good", "b": "bad"}
COMMAND: Final = re.compile(r"/[A-Za-z][\w-]*(?=\s|$)")  # a path has a second slash
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
MARKS_ON, MARKS_OFF = "\x1b[?2004h", "\x1b[?2004l"  # of what is pasted
BEGINS, ENDS = "\x1b[200~", "\x1b[201~"
AT_ONCE_S: Final = 0.1  # nobody types the next key so soon


class ChatAnswer(NamedTuple):
    id: str
    text: str
    version: str
    is_stopped: bool = False


class TypedLine(NamedTuple):
    """One line of a person, or what they pasted."""

    text: str
    is_pasted: bool = False
    letter: str = ""  # where that is all that was typed
    command: str = ""  # the `/word` that it begins with


class Chat:
    def __init__(
        self,
        client: HomeClient,
        model: str,
        version: str | None,
        vs: str | None,
        system: str | None,
        sampling: dict[str, Any],
    ) -> None:
        """`sampling` goes into each request as it is."""
        self._client = client
        self._model = model
        self._versions = [version or "live", *([vs] if vs else [])]
        self._system: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self._sampling = sampling
        self._new()

    def _new(self) -> None:
        self._messages = list(self._system)
        self._session = f"chat-{uuid.uuid4().hex[:8]}"
        self._answers: list[ChatAnswer] = []  # that a letter is about: one, or two to pick from

    def run(self) -> None:
        """Until Ctrl-D, or Ctrl-C at the prompt."""
        version_names = " and ".join(self._versions)
        with _mark_pastes():
            _dim(f"{self._model}, {version_names}. {SHORT}")
            while True:
                try:
                    line: TypedLine | None = _message("> ")
                    while line is not None:
                        line = self._handle(line)
                except (EOFError, KeyboardInterrupt):
                    print()
                    return

    def _handle(self, line: TypedLine) -> TypedLine | None:
        """The words said instead of a reason, if any."""
        try:
            if line.is_pasted and PREFIX.match(line.text):
                _dim("what is pasted is no command, so nothing was sent: type it, or put a word before it")
            elif line.text == "/new":
                self._new()
                _dim("from the beginning")
            elif line.text == "/help":
                _dim(HELP)
            elif len(self._answers) > 1:
                return self._pick(line)
            elif line.letter in WORDS:
                return self._rate(WORDS[line.letter])
            elif PREFIX.match(line.text):
                self._command(line.text)
            elif line.command:
                _dim(
                    f"there is no {line.command} here, so nothing was sent; /help lists the commands, and a space "
                    "before it sends it to the model"
                )
            elif line.text:
                self._turn(line.text)
        except (Refused, Unreachable) as error:
            _discard_input()
            print(f"rlproxy: {error}", file=sys.stderr)
        return None

    def _command(self, text: str) -> None:
        """A `/rl` line, which rlproxy answers: one of them, whichever versions answer, and no part of the chat. Its
        reply is not the model's, so no letter is about it."""
        self._say([*self._messages, {"role": "user", "content": text}], self._versions[0], None)
        _discard_input()

    def _turn(self, text: str) -> None:
        messages = [*self._messages, {"role": "user", "content": text}]
        order = random.sample(self._versions, len(self._versions))  # who looks must not know which comes first
        answers = []
        self._answers = []
        for name, version in zip("AB", order, strict=False):
            if len(order) > 1:
                _dim(name, end=" ")
            # One of two is always bad: beside each other they say nothing of how a version is liked.
            answers.append(self._say(messages, version, "side" if len(order) > 1 else None))
        if any(answer is None or answer.is_stopped for answer in answers):
            self._stop(answers)
            return
        self._answers = [answer for answer in answers if answer is not None]
        self._messages = [*messages, {"role": "assistant", "content": self._answers[0].text}]
        _discard_input()
        _dim(PICK if len(answers) > 1 else RATE)

    def _stop(self, answers: list[ChatAnswer | None]) -> None:
        """Keep an answer as far as it came: it may be rated, and is not gone on from. Of two there is nothing to
        pick."""
        _discard_input()
        if len(answers) > 1 or answers[0] is None or not answers[0].text:
            return
        self._answers = [answers[0]]
        _dim(RATE_STOPPED)

    def _rate(self, word: str) -> TypedLine | None:
        """Stored at once; a reason is added to it."""
        if not self._answers:
            _dim(NONE)
            return None
        answer = self._answers[0]
        self._feedback(answer, word)
        _dim(f"rated {word}: {quote_text(answer.text)}")
        if word == "good":
            return None
        reason = _message(REASON_PROMPT)
        if not reason.is_pasted and (PREFIX.match(reason.text) or reason.command):
            return reason
        if reason.text:
            self._feedback(answer, word, reason.text)
            _dim("your reason is kept with it")
        return None

    def _pick(self, line: TypedLine) -> TypedLine | None:
        """By a letter alone; whatever else is said picks neither."""
        answers, self._answers = self._answers, []
        names = ", ".join(f"{name} was {answer.version}" for name, answer in zip("AB", answers, strict=True))
        if not line.letter or line.letter not in "ab":
            _dim(f"{names}; neither was rated")
            return line if line.text else None
        better, worse = answers if line.letter == "a" else reversed(answers)
        self._messages[-1] = {"role": "assistant", "content": better.text}
        self._feedback(better, "good")
        self._feedback(worse, "bad")
        _dim(f"{names}; {line.letter.upper()} is rated good, the other bad")
        return None

    def _say(self, messages: list[dict[str, str]], version: str, turn: str | None) -> ChatAnswer | None:
        """Printed as it comes; None where it was stopped before it had an id."""
        model = self._model if version == "live" else f"{self._model}@{version}"
        body = {"model": model, "messages": messages, "stream": True, **self._sampling}
        id, pieces, is_cut = "", list[str](), False
        words = WrappedWords()
        events = self._client.events("/v1/chat/completions", body, turn, self._session)
        try:
            for event in events:
                id = str(event.get("id") or id)
                piece, finish_reason = _piece(event)
                is_cut = is_cut or finish_reason == "length"
                pieces.append(piece)
                print(words.add(piece), end="", flush=True)
        except KeyboardInterrupt:
            _discard_input()
            print(words.end(), end="")
            _dim(" (stopped)")
            return ChatAnswer(id, "".join(pieces), version, is_stopped=True) if id else None
        except (Refused, Unreachable):
            if pieces:
                print(words.end())
            raise
        finally:
            events.close()
        print(words.end())
        if is_cut:
            _dim("(cut at its length limit; --max-tokens sets it)")
        return ChatAnswer(id, "".join(pieces), version)

    def _feedback(self, answer: ChatAnswer, word: str, comment: str | None = None) -> None:
        rating = {"completion_id": answer.id, "rating": word, "comment": comment, "source": "cli"}
        self._client.ask("POST", "/v1/feedback", rating)


def ask(client: HomeClient, model: str, question: str, *, as_json: bool) -> ChatAnswer:
    """One question in a session of its own, printed as it is answered. Ends the command where it fails."""
    from proxy.cli.failing import fail
    from proxy.cli.http import INTERRUPTED

    body = {"model": model, "messages": [{"role": "user", "content": question}], "stream": True}
    id, pieces, words = "", list[str](), WrappedWords()
    try:
        for event in client.events("/v1/chat/completions", body, session=f"ask-{uuid.uuid4().hex[:8]}"):
            id = str(event.get("id") or id)
            pieces.append(_piece(event)[0])
            if not as_json:
                print(words.add(pieces[-1]) if sys.stdout.isatty() else pieces[-1], end="", flush=True)
    except KeyboardInterrupt:
        fail("stopped; the answer is kept as far as it came.", INTERRUPTED)
    except (Refused, Unreachable) as error:
        fail(str(error))
    if not as_json:
        print(words.end())
    return ChatAnswer(id, "".join(pieces), model)


class WrappedWords:
    """Text as it comes, in lines that break between words: a word is held until it is whole."""

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    def add(self, piece: str) -> str:
        """Return what can be printed by now."""
        *finished, self._word = re.split(r"(?<=\s)", self._word + piece)
        return "".join(map(self._place, finished))

    def end(self) -> str:
        """The last word."""
        word, self._word = self._word, ""
        return self._place(word)

    def _place(self, word: str) -> str:
        """With the line break that it needs; `word` ends with its space. A longer word than a line is left whole."""
        from rich.cells import cell_len

        room = shutil.get_terminal_size().columns
        width = cell_len(word.rstrip())
        breaks = "\n" if self._column and self._column + width > room and width <= room and word.strip() else ""
        column = 0 if breaks else self._column
        self._column = 0 if word.endswith("\n") else column + cell_len(word)
        return breaks + word


def _dim(text: str, end: str = "\n") -> None:
    """Print a line of rlproxy's, apart from those of the model."""
    width = shutil.get_terminal_size().columns
    text = "\n".join(textwrap.fill(line, width) if len(line) > width else line for line in text.split("\n"))
    print(f"{DIM}{escape_controls(text)}{PLAIN}", end=end, file=styled(sys.stdout), flush=True)


def _piece(event: dict[str, Any]) -> tuple[str, str | None]:
    """The words of an event, and why the answer ends with it. Raises Refused."""
    if error := event.get("error"):
        raise Refused(str(error.get("message") if isinstance(error, dict) else error))
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or ""), choices[0].get("finish_reason")


@contextmanager
def _mark_pastes() -> Iterator[None]:
    """The terminal marks what is pasted, and does not show the marks; afterwards it is as before."""
    descriptor = sys.stdin.fileno()
    original = termios.tcgetattr(descriptor)
    settings = termios.tcgetattr(descriptor)
    settings[3] &= ~termios.ECHOCTL
    out = styled(sys.stdout)
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
        print(MARKS_ON, end="", file=out, flush=True)
        yield
    finally:
        print(MARKS_OFF, end="", file=out, flush=True)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, original)


def _message(prompt: str) -> TypedLine:
    """Read what was typed up to Enter, or pasted, with all its lines."""
    line = input(prompt)
    descriptor = sys.stdin.fileno()
    original = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)  # a last line without its end is there only so
        following_text = _read_available(descriptor)
        while line.count(BEGINS) + following_text.count(BEGINS) > line.count(ENDS) + following_text.count(ENDS):
            if not (piece := os.read(descriptor, 65536)):
                break
            following_text += piece.decode("utf-8", "replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, original)
    text = f"{line}\n{following_text}" if following_text else line
    is_pasted = bool(following_text) or BEGINS in text
    letter = text.lower() if len(text) == 1 and not is_pasted else ""
    command = COMMAND.match(text)
    typed_command = command[0] if command and not is_pasted else ""
    return TypedLine(text.replace(BEGINS, "").replace(ENDS, "").strip(), is_pasted, letter, typed_command)


def _read_available(descriptor: int) -> str:
    """All that is there, and that comes without a pause."""
    buffer = bytearray()
    while select.select([descriptor], [], [], AT_ONCE_S)[0] and (piece := os.read(descriptor, 65536)):
        buffer += piece
    return buffer.decode("utf-8", "replace")


def _discard_input() -> None:
    """Forget what was typed, or pasted, while there was something else to see."""
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
