"""A hundred of the requests that `make fuzz` sends by the hundred thousand: `scripts.fuzz.routes` on a real proxy
in a process of its own, with keys on. RLPROXY_FUZZ_SEED=n begins elsewhere."""

from __future__ import annotations

import os

from scripts.fuzz.house import bugs
from scripts.fuzz.routes import fuzzed

COUNT = 120
SEED = int(os.environ.get("RLPROXY_FUZZ_SEED", "0"))


async def test_every_route_answers_and_nothing_odd_is_stored() -> None:
    found = await fuzzed(COUNT, SEED, keys=True)
    assert found["failures"] == []
    assert found["requests"] == COUNT and len(found["by_route"]) > 25
    stored = found["store"]
    assert stored["witnesses_whole"] == stored["witnesses"] > 0 and stored["acknowledged"] > 0
    assert stored["integrity"] == "ok"


def test_a_bug_in_the_log_is_seen_once_with_its_place() -> None:
    trace = 'Traceback\\n  File \\"/x/proxy/relay.py\\", line 7, in f\\nValueError: odd'
    line = f'{{"event": "a bug of rlproxy\'s own", "exception": "{trace}"}}'
    assert list(bugs(f"well\n{line}\n{line}").values()) == [2]
    assert "relay.py" in str(bugs(line)) and not bugs('{"event": "swap", "level": "info"}')
