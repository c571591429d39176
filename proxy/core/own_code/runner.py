"""The child that calls a function of the user's own code: one line of JSON in, one line out.

    python -I runner.py MEMORY_BYTES

The first line has the code, its file's name and the function's; each further one the arguments of a call. No module of
rlproxy is loaded here, and what the code prints goes to stderr. Not here: who starts it, what it is given and how long
it may take (child).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any


def main(memory: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")  # half a character: no store takes it
    os.dup2(2, 1)  # what the code prints is not an answer
    begin = json.loads(sys.stdin.readline())
    function = load_function(begin["code"].encode("latin-1"), begin["file"], begin["function"])
    for line in sys.stdin:
        try:
            answer = {"value": function(*json.loads(line))}
        except Exception as error:  # the user's code may raise anything; the next call may succeed
            answer = {"error": f"{_place(error, begin['file'])}{type(error).__name__}: {error}"}
        try:
            text = json.dumps(answer, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            text = json.dumps({"error": f"it returned what is not JSON: {error}"})
        print(text, file=answers, flush=True)


def load_function(code: bytes, file: str, name: str) -> Callable[..., Any]:
    """The function of this name. Raises SystemExit with a sentence."""
    module = types.ModuleType("own_code")
    module.__file__ = file
    sys.modules["own_code"] = module
    try:
        exec(compile(code, file, "exec"), module.__dict__)  # noqa: S102  the user's own code, which they asked for
    except Exception as error:
        raise SystemExit(f"{_place(error, file)}{type(error).__name__}: {error}") from None
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise SystemExit(f"{file} has no function {name!r}")
    return function


def _place(error: Exception, file: str) -> str:
    """Its last line in the user's own file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}, line {lines[-1]}: " if lines else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
