"""A person's own `score` function, run in a process of its own: one line of JSON in, one line out.

    python -I own_runner.py MODULE MEMORY_BYTES

Owns nothing else: no module of rlproxy is loaded here, and what the module prints goes to stderr. Not here: who starts
it, what it is given and how long it may take (own).
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys


def main(path: str, memory: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the module prints is no answer
    spec = importlib.util.spec_from_file_location("own_signals", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = {"value": module.score(asked["completion"], asked["next"])}
        except Exception as error:  # it is theirs: one turn that it cannot score is no reason to end
            said = {"error": f"{type(error).__name__}: {error}"}
        try:
            text = json.dumps(said)
        except (TypeError, ValueError) as error:
            text = json.dumps({"error": f"it returned what is not JSON: {error}"})
        print(text, file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
