"""Compare libraries that constrain sampling to a JSON schema, over the JSON Schema test suite.

    VENV/bin/python -m scripts.suites.schema_libraries LIBRARY --suite FOLDER --tokenizer FOLDER [--json FILE]

LIBRARY is llguidance, xgrammar or outlines-core, in an environment that has it, transformers and jsonschema. FOLDER
is `json/tests/draft2020-12` of jsonschema's source distribution. Each schema is compiled, then each instance of the
suite is walked through it token by token, then random replies are drawn. A library is wrong where an invalid instance
passes or a drawn reply is invalid. A refusal only offers less.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import random
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from transformers import AutoTokenizer

COMPILE_S: Final = 20  # a longer compilation counts as a refusal
DRAWS, DRAW_TOKENS = 4, 120
CLOSING: Final = ('"', "}", "]", '"}', '"]', "}}", "]}")


class Refused(Exception):
    pass


class Walk(Protocol):
    def mask(self) -> Any: ...  # (V,) booleans

    def take(self, token: int) -> bool: ...

    def may_end(self) -> bool: ...


class LLGuidance:
    def __init__(self, tokenizer: Any) -> None:
        import llguidance.hf

        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer)
        self._size = len(tokenizer)
        self._eos = tokenizer.eos_token_id

    def compile(self, schema: Any) -> Any:
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        except ValueError as error:
            raise Refused(str(error)) from None
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return matcher

    def walk(self, compiled: Any) -> Walk:
        matcher, size, eos = compiled.deep_copy(), self._size, self._eos

        class State:
            def mask(self) -> Any:
                if matcher.is_stopped():
                    return np.arange(size) == eos
                bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
                return np.unpackbits(bits, bitorder="little")[:size].astype(bool)

            def take(self, token: int) -> bool:
                return bool(matcher.try_consume_tokens([token]) == 1)

            def may_end(self) -> bool:
                return bool(matcher.is_accepting())

        return State()


class XGrammar:
    def __init__(self, tokenizer: Any) -> None:
        import xgrammar

        self._info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=[tokenizer.eos_token_id])
        self._size = len(tokenizer)
        self._eos = tokenizer.eos_token_id

    def compile(self, schema: Any) -> Any:
        import xgrammar

        compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        try:
            return compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except Exception as error:
            raise Refused(str(error)) from None

    def walk(self, compiled: Any) -> Walk:
        import torch
        import xgrammar

        matcher = xgrammar.GrammarMatcher(compiled)
        bitmask = xgrammar.allocate_token_bitmask(1, self._info.vocab_size)
        size, eos = self._size, self._eos

        class State:
            def mask(self) -> Any:
                matcher.fill_next_token_bitmask(bitmask)
                bits = bitmask.view(torch.uint8).numpy().ravel()
                return np.unpackbits(bits, bitorder="little")[:size].astype(bool)

            def take(self, token: int) -> bool:
                return bool(matcher.accept_token(token))

            def may_end(self) -> bool:
                return bool(self.mask()[eos])

        return State()


class OutlinesCore:
    def __init__(self, tokenizer: Any) -> None:
        from outlines_core import Vocabulary

        from trainer.lessons.captured_tokens import bytes_of

        self._size, self._eos = len(tokenizer), tokenizer.eos_token_id
        special = set(tokenizer.all_special_ids)
        by_bytes: dict[bytes, list[int]] = {}
        for token, piece in enumerate(bytes_of(tokenizer, range(self._size))):
            if piece and token not in special:
                by_bytes.setdefault(piece, []).append(token)
        self._vocabulary = Vocabulary(self._eos, by_bytes)

    def compile(self, schema: Any) -> Any:
        from outlines_core import Index, json_schema

        try:
            return Index(json_schema.build_regex_from_schema(json.dumps(schema)), self._vocabulary)
        except Exception as error:
            raise Refused(str(error)) from None

    def walk(self, compiled: Any) -> Walk:
        from outlines_core import Guide

        guide, size, eos = Guide(compiled), self._size, self._eos

        class State:
            def mask(self) -> Any:
                mask = np.zeros(size, bool)
                mask[guide.get_tokens()] = True
                return mask

            def take(self, token: int) -> bool:
                if token not in guide.get_tokens():
                    return False
                guide.advance(token, return_tokens=False)
                return True

            def may_end(self) -> bool:
                return bool(guide.is_finished()) or eos in guide.get_tokens()

        return State()


LIBRARIES: Final = {"llguidance": LLGuidance, "xgrammar": XGrammar, "outlines-core": OutlinesCore}


def groups(suite: Path) -> Iterator[tuple[str, Any]]:
    """Name and group of each schema that needs no other document."""
    for path in sorted(suite.glob("*.json")):
        for group in json.loads(path.read_text()):
            yield f"{path.stem}: {group['description']}", group


def passes(library: Any, compiled: Any, tokenizer: Any, instance: Any) -> bool:
    """Tell whether any usual way to write the instance passes whole."""
    for separators in ((", ", ": "), (",", ":")):
        for is_ascii in (False, True):
            try:
                text = json.dumps(instance, separators=separators, ensure_ascii=is_ascii)
                tokens = tokenizer.encode(text, add_special_tokens=False)
            except (UnicodeEncodeError, TypeError):  # half a surrogate
                continue
            walk = library.walk(compiled)
            if all(walk.take(token) for token in tokens) and walk.may_end():
                return True
    return False


def draw(library: Any, compiled: Any, tokenizer: Any, seed: int, times: list[float]) -> str | None:
    """A random reply, or None where it did not end in time."""
    walk, rng = library.walk(compiled), random.Random(seed)
    tokens: list[int] = []
    closing = [id for text in CLOSING for id in tokenizer.encode(text, add_special_tokens=False)[:1]]
    for step in range(DRAW_TOKENS):
        start = time.thread_time()
        allowed = np.flatnonzero(walk.mask())
        times.append(time.thread_time() - start)
        if not len(allowed):
            return None
        chances = set(allowed.tolist())
        if tokenizer.eos_token_id in chances and (step > 15 or rng.random() < 0.3 or len(chances) == 1):
            return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
        near = [token for token in closing if token in chances]
        token = rng.choice(near) if near and (step > 15 or rng.random() < 0.4) else int(rng.choice(allowed))
        if token == tokenizer.eos_token_id or not walk.take(token):
            continue
        tokens.append(token)
    return None


def _is_valid(text: str, schema: Any, validator: Any) -> bool:
    try:
        return bool(validator(schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def measure(name: str, suite: Path, tokenizer_path: str, every: int) -> dict[str, Any]:
    import jsonschema

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    library: Any = LIBRARIES[name](tokenizer)
    validator = jsonschema.Draft202012Validator
    counts = dict.fromkeys(
        ("schemas", "refused", "instances", "right", "valid_refused", "invalid_passed", "drawn", "drawn_invalid"), 0
    )
    compile_s: list[float] = []
    mask_s: list[float] = []
    wrong: list[str] = []

    def too_long(*_: Any) -> None:
        raise Refused(f"longer than {COMPILE_S} s")

    signal.signal(signal.SIGALRM, too_long)
    for title, group in itertools.islice(groups(suite), 0, None, every):
        schema = group["schema"]
        counts["schemas"] += 1
        start = time.thread_time()
        signal.alarm(COMPILE_S)
        try:
            compiled = library.compile(schema)
        except Refused:
            counts["refused"] += 1
            continue
        finally:
            signal.alarm(0)
            compile_s.append(time.thread_time() - start)
        problems = set()
        for test in group["tests"]:
            counts["instances"] += 1
            if passes(library, compiled, tokenizer, test["data"]) == test["valid"]:
                counts["right"] += 1
            elif test["valid"]:
                counts["valid_refused"] += 1
            else:
                counts["invalid_passed"] += 1
                problems.add("an invalid instance passes")
        for seed in range(DRAWS):
            try:
                text = draw(library, compiled, tokenizer, seed, mask_s)
            except Exception as error:
                problems.add(f"drawing failed: {error!r:.80}")
                continue
            if text is None:
                continue
            counts["drawn"] += 1
            try:
                is_valid = _is_valid(text, schema, validator)
            except Exception as error:  # a document elsewhere
                problems.add(f"not checked: {type(error).__name__}")
                continue
            if not is_valid:
                counts["drawn_invalid"] += 1
                problems.add(f"drew {text[:60]!r}")
        if problems:
            wrong.append(f"{title}: {'; '.join(sorted(problems))}")
    return {
        "version": importlib.metadata.version(name),
        **counts,
        "schemas_wrong": len(wrong),
        "compile_cpu_ms": {"median": _ms(statistics.median(compile_s)), "max": _ms(max(compile_s))},
        "mask_cpu_ms": {"median": _ms(statistics.median(mask_s)), "p99": _ms(float(np.percentile(mask_s, 99)))},
        "wrong": wrong,
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--every", type=int, default=1, help="take each such schema only")
    parser.add_argument("--json", type=Path, help="a file of all libraries' figures, to which these are added")
    options = parser.parse_args()
    figures = measure(options.library, options.suite, options.tokenizer, options.every)
    print(json.dumps(figures, indent=1))
    if options.json:
        from scripts.harness.circumstances import circumstances

        old = json.loads(options.json.read_text()) if options.json.exists() else {}
        merged = {**old, "circumstances": circumstances(), options.library: figures}
        options.json.write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
