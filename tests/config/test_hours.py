from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.hours import DAYS, Window, is_inside, opens, parse

MONDAY = datetime(2026, 11, 16)


def at(day: str, time: str) -> datetime:
    hour, minute = map(int, time.split(":"))
    return MONDAY + timedelta(days=DAYS.index(day), hours=hour, minutes=minute)


@pytest.mark.parametrize(
    ("window", "open_at", "shut_at"),
    [
        ("09:00-17:00", ["mon 9:00", "sun 16:59"], ["mon 8:59", "mon 17:00"]),
        ("22:00-07:00", ["mon 22:00", "tue 0:00", "mon 6:59", "sun 23:59"], ["mon 7:00", "mon 21:59"]),
        ("sat,sun 00:00-24:00", ["sat 0:00", "sun 23:59"], ["fri 23:59", "mon 0:00"]),
        ("fri 22:00-07:00", ["fri 22:00", "sat 6:59"], ["fri 6:59", "sat 22:00", "sat 7:00"]),
        ("sun 22:00-07:00", ["sun 23:00", "mon 6:59"], ["mon 22:00", "sun 6:59"]),
        ("mon-fri 19:00-24:00", ["mon 19:00", "fri 23:59"], ["sat 0:00", "sat 20:00", "sun 20:00"]),
        ("fri-mon,wed 1:00-02:00", ["sun 1:00", "mon 1:30", "wed 1:00"], ["tue 1:00", "thu 1:00"]),
        ("SAT 00:00-24:00", ["sat 12:00"], ["sun 0:00"]),
        ("22:00-00:00", ["mon 23:59"], ["tue 0:00"]),
    ],
)
def test_windows(window: str, open_at: list[str], shut_at: list[str]) -> None:
    for moments, expected in ((open_at, True), (shut_at, False)):
        for moment in moments:
            assert is_inside([window], at(*moment.split())) is expected, moment


def test_no_windows_are_all_hours() -> None:
    assert is_inside([], MONDAY) and opens([], MONDAY) == MONDAY


def test_one_of_several_is_enough() -> None:
    assert is_inside(["sat 10:00-11:00", "mon 10:00-11:00"], at("mon", "10:30"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no window of time"),
        ("22-7", "no window of time"),
        ("sat sun 10:00-11:00", "no window of time"),
        ("25:00-07:00", "no time 25:00"),
        ("10:60-11:00", "no time 10:60"),
        ("10:00-24:01", "no time 24:01"),
        ("10:00-10:00", "is empty"),
        ("24:00-07:00", "is empty"),
        ("sonntag 10:00-11:00", "no day 'sonntag'"),
        ("mon- 10:00-11:00", "no day ''"),
    ],
)
def test_what_is_no_window_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


def minute_by_minute(window: Window) -> set[tuple[int, int]]:
    """The slow way: every minute from each opening on."""
    found = set()
    for day in window.days:
        for step in range(window.minutes):
            days, minute = divmod(window.start + step, 24 * 60)
            found.add(((day + days) % 7, minute))
    return found


@given(st.sets(st.sampled_from(DAYS), min_size=1), st.integers(0, 1439), st.integers(0, 1440), st.integers(0, 10079))
def test_holds_agrees_with_counting(days: set[str], start: int, end: int, now: int) -> None:
    text = f"{','.join(days)} {start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
    if start == end:
        return
    window = parse(text)
    assert 0 < window.minutes <= 1440
    moment = MONDAY + timedelta(minutes=now)
    assert window.holds(moment) == ((now // 1440, now % 1440) in minute_by_minute(window))


def test_the_next_opening() -> None:
    assert opens(["22:00-07:00"], at("mon", "12:30")) == at("mon", "22:00")
    assert opens(["22:00-07:00"], at("mon", "23:30")) == at("mon", "23:30")
    assert opens(["mon 9:00-10:00"], at("mon", "10:00")) == at("mon", "9:00") + timedelta(days=7)
