"""Writes tests/store/schemas/NNNN.sql: `python -m tests.store.make_schema`. A database as the rlproxy of then left it.

Run once when a migration is released, never again for an older one: what is there is what users have.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from store.learning import meta

FOLDER = Path(__file__).parent / "schemas"
ROWS = """
INSERT INTO messages (hash, parent, role, body) VALUES (x'01', NULL, 'user', CAST('{"content":"hi"}' AS BLOB)),
    (x'02', x'01', 'assistant', CAST('{"content":"hello"}' AS BLOB));
INSERT INTO completions (id, request_id, choice, created_at, dialect, backend, model, served_model, version, turn,
    turn_rule, streamed, sampling, request, prompt_hash, status, finished_at, reply_hash, text, exact)
VALUES ('rl-a', 'rl-a', 0, 1, 'chat', 'vllm', 'm', 'm@v1', 1, 'main', 'default', 0, '{}', x'7b7d', x'01', 'done', 2,
    x'02', 'hello', 0);
INSERT INTO ratings (id, completion_id, rater, value, comment, weight, source, created_at, live)
VALUES ('rt-1', 'rl-a', 'owner', 1.0, 'so kind', 1.0, 'http', 2.0, 1);
INSERT INTO links (platform, channel, message_id, completion_id) VALUES ('slack', 'C1', '1', 'rl-a');
INSERT INTO adapters (version, parent, run_id, model, path, created_at, manifest)
VALUES (1, 0, NULL, 'm', '/v1', 3.0, '{}');
UPDATE pointer SET live = 1, changed_at = 4.0, reason = 'run 1 passed the gate';
INSERT INTO meta VALUES ('baseline', '0.25');
"""
LOG = """
INSERT INTO audit (at, actor, act, detail) VALUES (4.0, 'admin', 'promote', '{"version":1}'),
    (5.5, 'admin', 'pause', '{}');
"""
CHAINED = 9  # the schema from which on the log is a chain


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    scripts = sorted(files("store").joinpath("migrations").iterdir(), key=lambda file: file.name)
    scripts = [file for file in scripts if file.name.endswith(".sql")]
    for at, newest in enumerate(scripts):
        number = int(newest.name[:4])
        out = FOLDER / f"{number:04d}.sql"
        if out.exists():
            continue
        with closing(sqlite3.connect(":memory:")) as db:
            for script in scripts[: at + 1]:
                db.executescript(script.read_text(encoding="utf-8"))
            db.executescript(ROWS if number >= CHAINED else ROWS + LOG)
            if number >= CHAINED:
                meta.audit(db, "admin", "promote", {"version": 1})
                meta.audit(db, "admin", "pause", {})
                db.commit()
            lines = "\n".join(db.iterdump())
        out.write_text(f"{lines}\nPRAGMA user_version = {number};\n", encoding="utf-8")


if __name__ == "__main__":
    main()
