"""Hours of the week, as a person writes them: "22:00-07:00", "sat,sun 00:00-24:00", "mon-fri 19:00-23:30".

Owns what such a text means, crossing midnight included: the day is the one on which the window opens. Not here: what
may happen in these hours (the proxy's rules of training).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 24 * 60
HOW: Final = 'write "22:00-07:00", "sat,sun 00:00-24:00" or "mon-fri 19:00-23:30"'

_TIMES: Final = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


class Window(NamedTuple):
    """Opens on each of `days` (0 is Monday) at minute `start` of the day and stays open for `minutes`."""

    days: frozenset[int]
    start: int
    minutes: int

    def holds(self, now: datetime) -> bool:
        """Tell whether the clock on the wall shows a time in the window."""
        minute = now.hour * 60 + now.minute
        if now.weekday() in self.days and self.start <= minute < self.start + self.minutes:
            return True
        yesterday = (now.weekday() - 1) % 7
        return yesterday in self.days and minute < self.start + self.minutes - DAY_MINUTES


def parse(text: str) -> Window:
    """Raises ValueError with one sentence on what is wrong and how to write it."""
    *days, times = text.lower().split() or [""]
    match = _TIMES.fullmatch(times)
    if match is None or len(days) > 1:
        raise ValueError(f"{text!r} is no window of time: {HOW}")
    start, end = _minute(match[1], match[2], text), _minute(match[3], match[4], text)
    if start in (DAY_MINUTES, end):
        raise ValueError(f"{text!r} is empty: a whole day is 00:00-24:00")
    return Window(_days(days[0], text) if days else frozenset(range(7)), start, (end - start) % DAY_MINUTES or end)


def is_inside(windows: Sequence[str], now: datetime) -> bool:
    """Tell whether `now`, local time, is in one of them. No windows at all are all the hours there are."""
    return not windows or any(parse(text).holds(now) for text in windows)


def opens(windows: Sequence[str], now: datetime) -> datetime:
    """When the next of them opens; `now` where one is open."""
    moment, parsed = now, [parse(text) for text in windows]
    for _ in range(8 * DAY_MINUTES):
        if not parsed or any(window.holds(moment) for window in parsed):
            return moment
        moment = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
    raise AssertionError("every window opens at least once a week")


def _minute(hour: str, minute: str, text: str) -> int:
    of_day = int(hour) * 60 + int(minute)
    if int(minute) > 59 or of_day > DAY_MINUTES:
        raise ValueError(f"{text!r} has no time {hour}:{minute}: a day goes from 00:00 to 24:00")
    return of_day


def _days(text: str, whole: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        for name in (first, last) if dash else (first,):
            if name not in DAYS:
                raise ValueError(f"{whole!r} has no day {name!r}: the days are {', '.join(DAYS)}")
        start, end = DAYS.index(first), DAYS.index(last or first)
        days |= {(start + step) % 7 for step in range((end - start) % 7 + 1)}
    return frozenset(days)
