"""Take recordings that were made elsewhere into the golden corpus.

`python -m scripts.golden.take FOLDER NAME --command LINE`.
Owns nothing but the copy: the recorded files have the corpus' form already (`scripts/golden/record.py`), made by
whoever had the server. A file that has not is refused, so that nothing half-recorded becomes a truth of the tests.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from scripts.golden.cases import ROUTES
from scripts.golden.record import GOLDEN


def take(folder: Path, name: str, command: str) -> int:
    """The number of recordings taken. Raises SystemExit at the first file that is not one."""
    files = sorted(file for dialect in ROUTES for file in (folder / dialect).glob("*.json"))
    for file in files:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        is_complete = recorded.get("plain", {}).keys() >= {"stream", "whole"}
        if recorded.get("route") != ROUTES[file.parent.name] or not is_complete:
            raise SystemExit(f"{file} is not a recording: it needs its route, and `plain` both streamed and whole.")
        out = GOLDEN / name / file.parent.name / file.name
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    if (api := folder / "api.json").exists():  # what is asked of it beside the formats; a fake has to answer the same
        shutil.copyfile(api, GOLDEN / name / "api.json")
    about = json.loads((folder / "server.json").read_text(encoding="utf-8"))
    about = {**about, "server": name, "version": f"{about['server']} {about['version']}", "command": command}
    (GOLDEN / name / "server.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return len(files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--command", default="ollama serve")
    chosen = parser.parse_args()
    print(f"{take(chosen.folder, chosen.name, chosen.command)} recordings are in {GOLDEN / chosen.name}")
