"""A home that an earlier rlproxy left: of today's schema, which is the earlier one where a test has a newer one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from store.file import meta, schema

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


def older_home(home: Path) -> Path:
    """Written before the newer schema is installed; the database's file."""
    home.mkdir(exist_ok=True)
    path = home / schema.NAME
    with closing(sqlite3.connect(path)) as db:
        schema.migrate(db)
        db.executescript(ROWS)
        meta.audit(db, "admin", "promote", {"version": 1})
        meta.audit(db, "admin", "pause", {})
        db.commit()
    return path
