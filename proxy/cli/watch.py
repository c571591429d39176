"""`rlproxy watch`: a panel for a split terminal, where one key rates each finished answer.

Owns the queue of answers, the keys and what is drawn. It shows the oldest answer that nobody has rated, and moves on
only when a key says so. An answer that ends meanwhile waits behind it, so a key never rates what was not on the screen.
What waits is noted, so that the next panel goes on with it; after a kill with what came meanwhile, too. Side turns
never come here, nor a turn that calls tools: the agent goes on after it. It is a client like any other: it looks each
second, and rates over `/v1/feedback`.
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TextIO
from urllib.parse import urlencode

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from config.settings import Settings
from proxy.cli.answers import ago, rated_as, text_of
from proxy.cli.common import progress_line, some
from proxy.cli.http import HomeClient
from proxy.cli.tables import panel_console
from proxy.client import Refused, Unreachable
from proxy.conversation.first_words import quote_text

EVERY_S: Final = 1.0
STATUS_EVERY_S: Final = 10.0
SETTLE_S: Final = 0.3  # after a new answer is shown: a key that was meant for the one before
AT_ONCE: Final = 50  # answers looked at each time
LOCK: Final = "watch.lock"  # held by a panel; else when one was opened last
LOCK_S: Final = 1.0
OPENING_S: Final = 20  # for Python to start on a busy machine
SKIPPED: Final = "watch.skipped"  # a line for each id
WAITING: Final = "watch.waiting"  # the newest answer that a panel saw, then what waited on it
MOST_SKIPPED: Final = 1000
WAITING_S: Final = 3600.0  # a panel that is opened later begins with the newest answer alone
PANEL_ROWS: Final = 14
LEAST_ROWS: Final = 8
SMALL_ROWS: Final = 3  # for an answer: with fewer, other lines give way
AGENT_SHARE: Final = 0.6  # of the pane that the panel is opened below
CALLS: Final = ("tool_calls", "function_call")  # finish reasons
KEYS: Final = "1 good  2 bad  3 skip  c comment  f fix  u undo  ←→ others  q quit"
ARROWS: Final = {b"\x1b[D": "left", b"\x1b[C": "right", b"\x1bOD": "left", b"\x1bOC": "right"}

Word = Literal["good", "bad"]


class EarlierPanel(NamedTuple):
    """The notes that the panel before this one has left. Of one that was closed with q no newest answer is known."""

    newest: str = ""  # id of the last answer that it saw
    waiting: Sequence[str] = ()


class AnswerQueue:
    """Finished main answers without a rating, oldest first."""

    def __init__(self, rater: str | None = None, notes: EarlierPanel | None = None) -> None:
        self._rater = rater
        self._notes = notes or EarlierPanel()
        self.newest = ""  # the last answer that ended
        self._answers: list[dict[str, Any]] = []
        self._passed: set[str] = set()  # rated or skipped here
        self._is_first_look = True
        self._position = 0

    @property
    def current(self) -> dict[str, Any] | None:
        return self._answers[self._position] if self._answers else None

    @property
    def is_unread(self) -> bool:
        """No look at the answers has succeeded yet."""
        return self._is_first_look

    @property
    def count(self) -> int:
        return len(self._answers)

    @property
    def ids(self) -> list[str]:
        return [answer["id"] for answer in self._answers]

    @property
    def place(self) -> int:
        """The position of the current answer, from 1."""
        return self._position + 1

    def update(self, newest_first: Sequence[dict[str, Any]]) -> None:
        """The first look takes what waited before and what ended since a panel was killed. The newest answer comes too,
        which the person has before them."""
        by_id = {answer["id"]: answer for answer in newest_first}
        waiting = [by_id.get(answer["id"], answer) for answer in self._answers]
        self._keep([answer for answer in waiting if not self._is_rated(answer)])
        ended = [answer for answer in newest_first if _is_final(answer)]
        ended_ids = [answer["id"] for answer in ended]
        if self._is_first_look:
            new_count = ended_ids.index(self._notes.newest) if self._notes.newest in ended_ids else 1
            self._passed = {*ended_ids[max(new_count, 1) :]} - {*self._notes.waiting}
            self._is_first_look = False
        self.newest = ended_ids[0] if ended_ids else ""
        ids = {*self.ids, *self._passed}
        for answer in reversed(ended):
            if answer["id"] not in ids and not self._is_rated(answer):
                self._answers.append(answer)

    def move(self, step: int) -> None:
        if self._answers:
            self._position = min(max(self._position + step, 0), len(self._answers) - 1)

    def drop(self, id: str) -> None:
        """It was rated or skipped."""
        self._passed.add(id)
        self._keep([answer for answer in self._answers if answer["id"] != id])

    def put_back(self, answer: dict[str, Any]) -> None:
        """Its rating was taken back: it is shown again."""
        self._passed.discard(answer["id"])
        self._answers.insert(self._position, answer)

    def _keep(self, answers: list[dict[str, Any]]) -> None:
        current = self.current
        self._answers = answers
        if current is not None and current in answers:
            self._position = answers.index(current)
        self.move(0)

    def _is_rated(self, answer: dict[str, Any]) -> bool:
        return rated_as(answer, self._rater) != ""


def _is_final(answer: dict[str, Any]) -> bool:
    """A main answer has ended, and its agent does not go on by itself."""
    return answer["status"] == "done" and answer["turn"] == "main" and answer["finish_reason"] not in CALLS


class GivenRating(NamedTuple):
    id: str
    word: str
    answer: dict[str, Any]


class Panel:
    def __init__(self, client: HomeClient, session: str | None, rater: str | None, home: Path) -> None:
        """`home`: where what was skipped is noted."""
        self._client = client
        self._home = home
        self._rater = rater
        self._query = urlencode({"limit": AT_ONCE, "turn": "main", **({"session": session} if session else {})})
        self._noted = read_earlier(home)
        self._queue = AnswerQueue(rater, self._noted)
        self._ratings: list[GivenRating] = []
        self._line = ""  # what the last key did
        self._problem = ""
        self._progress = ""
        self._progress_at = 0.0  # monotonic
        self._change_s = 0.0
        self._shown_id: str | None = None

    def run(self) -> None:
        """Until q or Ctrl-C."""
        self._client.call("GET", "/rl/status")  # a wrong key or a wrong home is said at once
        terminal = panel_console()
        with _keys_at_once(), Live(console=terminal, screen=True, auto_refresh=False) as live:
            while True:
                self._look()
                self._note_waiting()
                live.update(self._drawn(terminal), refresh=True)
                key = _read_key(EVERY_S)
                if key == "q":
                    self._note_waiting(closed=True)
                    return
                if key:
                    self._act(key, live)
                    self._note_waiting()

    def _note_waiting(self, *, closed: bool = False) -> None:
        state = EarlierPanel("" if closed else self._queue.newest, self._queue.ids)
        if state != self._noted and not self._queue.is_unread:  # else it would forget what the panel before has noted
            self._noted = state
            _note(self._home, WAITING, [state.newest, *state.waiting])

    # Looking

    def _look(self) -> None:
        try:
            skipped = read_skipped(self._home)
            rows = self._client.ask("GET", f"/rl/completions?{self._query}")["data"]
            self._queue.update([row for row in rows if row["id"] not in skipped])
            if time.monotonic() - self._progress_at > STATUS_EVERY_S:
                self._progress = progress_line(self._client.ask("GET", "/rl/status"))
                self._progress_at = time.monotonic()
            self._problem = ""
        except (Refused, Unreachable) as error:
            self._problem = str(error)

    # Acting

    def _act(self, key: str, live: Live) -> None:
        answer = self._queue.current
        try:
            if key == "u":
                self._undo()
            elif key in ("left", "right"):
                self._queue.move(1 if key == "right" else -1)
            elif answer is None:
                self._line = "no answer waits"
            elif time.monotonic() - self._change_s < SETTLE_S:
                self._line = "that key came as the answer changed, and did nothing"
            elif key in ("1", "2"):
                self._rate(answer, "good" if key == "1" else "bad")
            elif key == "3":
                self._queue.drop(answer["id"])
                note_skipped(self._home, answer["id"])
                self._line = f"skipped {quote_text(answer['text'] or '')}"
            elif key == "c":
                self._comment(answer, live)
            elif key == "f":
                self._fix(answer, live)
        except (Refused, Unreachable) as error:
            self._line = str(error)

    def _rate(self, answer: dict[str, Any], word: Word, **texts: str) -> None:
        body = {"completion_id": answer["id"], "rating": word, "rater": self._rater, "source": "cli", **texts}
        rating = self._client.ask("POST", "/v1/feedback", body)
        self._ratings.append(GivenRating(rating["id"], word, answer))
        self._queue.drop(answer["id"])
        extra = "".join(f", with your {name}" for name in texts)
        self._line = f"rated {word}{extra}: {quote_text(answer['text'] or '')}"
        self._progress_at = 0.0  # it has changed

    def _undo(self) -> None:
        if not self._ratings:
            self._line = "nothing was rated here yet"
            return
        rating = self._ratings[-1]
        self._client.ask("DELETE", f"/v1/feedback/{rating.id}")
        self._ratings.pop()
        self._queue.put_back(rating.answer)
        self._line = f"taken back: {rating.word} for {quote_text(rating.answer['text'] or '')}"
        self._progress_at = 0.0

    def _comment(self, answer: dict[str, Any], live: Live) -> None:
        with _asking(live):
            comment = _input(f"{quote_text(answer['text'] or '')}\nYour comment (Enter: none): ")
            word = _input("1 good, 2 bad: ") if comment else ""
        if word not in ("1", "2"):
            self._line = "no comment was sent"
            return
        self._rate(answer, "good" if word == "1" else "bad", comment=comment)

    def _fix(self, answer: dict[str, Any], live: Live) -> None:
        with _asking(live):
            correction = edited(answer["text"] or "")
        if correction is None:
            self._line = "nothing was changed, so nothing was sent"
            return
        self._rate(answer, "bad", correction=correction)

    # Drawing

    def _drawn(self, terminal: Console) -> RenderableType:
        answer = self._queue.current
        if (id := answer["id"] if answer else None) != self._shown_id:
            self._shown_id, self._change_s = id, time.monotonic()
        head = [Text(self._progress, style="dim", no_wrap=True, overflow="ellipsis")]
        foot = [Text(line, style="bold", no_wrap=True, overflow="ellipsis") for line in (self._line,) if line]
        foot += [Text(self._problem, style="red")] if self._problem else []
        foot.append(Text(KEYS, style="dim"))
        if answer is None:
            return Group(*head, Text("\nEach finished answer comes here; none waits.\n"), *foot)
        place = f"{self._queue.place} of {self._queue.count}" if self._queue.count > 1 else "1 waits"
        rows = terminal.height - 2 - sum(len(line.wrap(terminal, terminal.width)) for line in foot)
        if rows < SMALL_ROWS:  # the answer comes first
            head, rows = [], rows + 1
        gap = [Text()] if rows > SMALL_ROWS else []
        text = _cut(terminal, text_or_error(answer), max(rows - len(gap), 1))
        return Group(*head, _title(answer, place), text, *gap, *foot)


def text_or_error(answer: dict[str, Any]) -> str:
    return str(answer["text"] or text_of(answer))


def edited(text: str) -> str | None:
    """The text as a person changed it in their editor; None where it is the same, or empty."""
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.NamedTemporaryFile("w+", suffix=".md", encoding="utf-8") as file:  # readable by nobody else
        file.write(text)
        file.flush()
        try:
            subprocess.run([*editor, file.name], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Refused(f"your editor ({editor[0]}) did not end well ({error}), so nothing was sent") from None
        with open(file.name, encoding="utf-8") as changed:  # an editor may have put another file in its place
            correction = changed.read().strip()
    return None if correction in ("", text.strip()) else correction


def _title(answer: dict[str, Any], place: str) -> Text:
    session = f" · {answer['session']}" if answer["session"] else ""
    age = ago(time.time() - answer["created_at"])
    return Text(f"{place} · {age} ago{session}", style="cyan", no_wrap=True, overflow="ellipsis")


def _cut(terminal: Console, text: str, rows: int) -> Text:
    """Its first rows, and how many more there are. A single row is of the answer, whatever follows."""
    lines = Text(text).wrap(terminal, terminal.width)
    if len(lines) <= rows or rows == 1:
        return Text("\n").join(lines[:rows])
    return Text("\n").join([*lines[: rows - 1], Text(f"… {some(len(lines) - rows + 1, 'more line')}", style="dim")])


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys come without Enter and are not shown; afterwards the terminal is as before."""
    descriptor = sys.stdin.fileno()
    original = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, original)


@contextmanager
def _asking(live: Live) -> Iterator[None]:
    """The ordinary terminal for a question, and the panel again behind it."""
    descriptor = sys.stdin.fileno()
    panel = termios.tcgetattr(descriptor)
    ordinary = termios.tcgetattr(descriptor)
    ordinary[3] |= termios.ICANON | termios.ECHO
    live.stop()
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, ordinary)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, panel)  # what was typed ahead means no key
        live.start()


def _input(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        return ""


def _read_key(timeout_s: float) -> str:
    """One key, or an arrow by its name; empty where none came in time. A paste is not a key."""
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], timeout_s)[0]:
        return ""
    raw = os.read(descriptor, 4096)
    if not raw:  # the terminal is gone
        return "q"
    if raw in ARROWS:
        return ARROWS[raw]
    return raw.decode("utf-8", "replace").lower() if len(raw) == 1 else ""


def read_skipped(home: Path) -> list[str]:
    """Answers that a person does not want to be asked about again, oldest first."""
    try:
        return (home / SKIPPED).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []


def note_skipped(home: Path, id: str) -> None:
    """The newest MOST_SKIPPED of them."""
    _note(home, SKIPPED, [*(earlier_id for earlier_id in read_skipped(home) if earlier_id != id), id][-MOST_SKIPPED:])


def read_earlier(home: Path) -> EarlierPanel:
    """The note of the panel before, where it was written within WAITING_S."""
    file = home / WAITING
    try:
        is_recent = time.time() - file.stat().st_mtime < WAITING_S
        newest, *waiting = file.read_text(encoding="utf-8").splitlines() if is_recent else [""]
    except FileNotFoundError:
        return EarlierPanel()
    return EarlierPanel(newest, waiting)


def _note(home: Path, name: str, ids: Sequence[str]) -> None:
    """In the home of this machine, if it has one."""
    if home.is_dir():
        half = home / f".{name}"
        half.write_text("\n".join(ids) + "\n", encoding="utf-8")
        half.replace(home / name)


@contextmanager
def single_panel(home: Path) -> Iterator[None]:
    """Let `open_below` see that a panel of this home is open."""
    if not home.is_dir():  # that of another machine
        yield
        return
    with open(home / LOCK, "w", encoding="ascii") as lock:
        end = time.monotonic() + LOCK_S
        while not _is_locked_by_us(lock) and time.monotonic() < end:  # another one is open, or `open_below` looks
            time.sleep(0.05)
        yield


def open_below(settings: Settings) -> str:
    """Open the panel in tmux below the pane that this runs in, unless one is open. Returns what was done, in words."""
    pane = os.environ.get("TMUX_PANE")
    if not os.environ.get("TMUX") or pane is None:
        return "no tmux is here, so no panel was opened; run `rlproxy watch` in another terminal"
    if not _take_turn(settings.home):
        return "the panel is open already"
    command = [*_program(), "watch", "--home", str(settings.home)]
    split = ["tmux", "split-window", "-d", "-v", "-l", str(_panel_rows(pane)), "-t", pane, shlex.join(command)]
    outcome = subprocess.run(split, capture_output=True, text=True)
    return outcome.stderr.strip() or "the panel is open below"


def _take_turn(home: Path) -> bool:
    """Tell whether a panel should open, and note the time. Two replies can come while one is still starting."""
    if not home.is_dir():
        return True
    with open(home / LOCK, "a+", encoding="ascii") as lock:
        if not _is_locked_by_us(lock):
            return False
        lock.seek(0)
        opened = lock.read().strip()
        if opened.isdecimal() and 0 <= time.time() - int(opened) < OPENING_S:
            return False
        lock.truncate(0)
        lock.write(str(int(time.time())))
    return True


def _is_locked_by_us(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _panel_rows(pane: str) -> int:
    """The size of the pane: the agent keeps the larger part of a small terminal."""
    height = subprocess.run(
        ["tmux", "display-message", "-p", "-t", pane, "#{pane_height}"], capture_output=True, text=True
    ).stdout.strip()
    remaining = int(int(height) * (1 - AGENT_SHARE)) if height.isdecimal() else PANEL_ROWS
    return min(max(remaining, LEAST_ROWS), PANEL_ROWS)


def _program() -> list[str]:
    program = shutil.which("rlproxy")
    return [program] if program else [sys.executable, "-m", "proxy.cli"]


def print_each(client: HomeClient, session: str | None, rater: str | None, emit: Any) -> None:
    """For programs: each finished main answer as it comes, until Ctrl-C."""
    query = urlencode({"limit": AT_ONCE, "turn": "main", **({"session": session} if session else {})})
    queue = AnswerQueue(rater)
    try:
        while True:
            queue.update(client.call("GET", f"/rl/completions?{query}")["data"])
            while (answer := queue.current) is not None:
                emit(answer)
                queue.drop(answer["id"])
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return
