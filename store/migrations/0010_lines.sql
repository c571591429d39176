-- Several adapters of one base, each with a pointer of its own. The common line has no row: its pointer is `pointer`.
CREATE TABLE lines (
    name       TEXT PRIMARY KEY,
    live       INTEGER NOT NULL,
    previous   INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    reason     TEXT NOT NULL,
    actor      TEXT NOT NULL,
    origin     INTEGER NOT NULL,             -- the version that it started from
    created_at REAL NOT NULL,
    retired_at REAL,                         -- it answers nobody since; what it learned stays
    users      TEXT NOT NULL DEFAULT '[]',   -- whose requests it answers, as JSON
    agents     TEXT NOT NULL DEFAULT '[]'
) STRICT, WITHOUT ROWID;

ALTER TABLE completions ADD COLUMN line TEXT NOT NULL DEFAULT 'common';
CREATE INDEX completions_line ON completions (line) WHERE line <> 'common';
ALTER TABLE episodes ADD COLUMN line TEXT NOT NULL DEFAULT 'common';
DROP INDEX episodes_left_out;
CREATE INDEX episodes_left_out ON episodes (line, left_out) WHERE left_out IS NOT NULL;
ALTER TABLE runs ADD COLUMN line TEXT NOT NULL DEFAULT 'common';
CREATE INDEX runs_line ON runs (line);
ALTER TABLE adapters ADD COLUMN line TEXT NOT NULL DEFAULT 'common';
CREATE INDEX adapters_line ON adapters (line);
ALTER TABLE experiments ADD COLUMN line TEXT NOT NULL DEFAULT 'common';
-- NULL: it may use every line. Another key only its own.
ALTER TABLE keys ADD COLUMN line TEXT;
