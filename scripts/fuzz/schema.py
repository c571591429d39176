"""schemathesis on /openapi.json of a running rlproxy: `python -m scripts.fuzz.schema [--examples N] [--seed N]`.

It makes requests out of the schemas, sound and unsound, and holds each answer against them. No answer may be a 5xx.
Status, content type and shape must be written down. No unsound request may be accepted, and no sound one refused.
Then the store is read as after every fuzz.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from scripts.fuzz.house import House, house
from scripts.fuzz.routes import Tally
from scripts.fuzz.stored import verdict

# What a route for models makes of its body beyond what we read is the backend's affair. To webhooks no schema makes a
# sound request, since they are signed; /rl/events has no end; and it cannot write the lines of /rl/import and
# /rl/episodes/rewards, which scripts.fuzz.routes writes.
NOT_OURS = ("--exclude-path-regex", "^(/rl/webhooks/|/rl/events|/rl/import|/rl/episodes/rewards)")
ALL = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
OURS = f"{ALL},negative_data_rejection,positive_data_acceptance,missing_required_header,unsupported_method"


async def run(command: str, running: House, checks: str, examples: int, seed: int, *only: str) -> int:
    process = await asyncio.create_subprocess_exec(
        command, "run", f"{running.url}/openapi.json", "--header", f"authorization: Bearer {running.key}",
        "--checks", checks, "--max-examples", str(examples), "--seed", str(seed), "--request-timeout", "20",
        "--continue-on-failure", "--phases", "coverage,fuzzing", "--warnings", "off", "--no-color", *only,
        cwd=running.home.parent,
    )  # fmt: skip
    return await process.wait()


async def fuzzed(command: str, examples: int, seed: int) -> list[str]:
    tally = Tally()
    async with house(keys=True) as running:
        for checks, only in (
            (OURS, ("--exclude-tag", "models", *NOT_OURS)),
            (ALL, ("--include-tag", "models")),
        ):
            if await run(command, running, checks, examples, seed, *only):
                tally.failures.append(f"schemathesis found something ({' '.join(only)}); it is said above")
        await running.stop()
        print(await verdict(running.home, tally), file=sys.stderr)
    return [*tally.failures, *running.failures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schemathesis", required=True, help="its command, as scripts/setup_schemathesis prints it")
    arguments = parser.parse_args()
    failures = asyncio.run(fuzzed(arguments.schemathesis, arguments.examples, arguments.seed))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
