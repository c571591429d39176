-- Answers that a check of the user's own (`signals.check`) has found something in. They go with their completions.
CREATE TABLE flags (
    completion_id TEXT PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    reason        TEXT NOT NULL,
    code          TEXT NOT NULL,  -- the sha256 of the file that said so
    flagged_at    REAL NOT NULL
) STRICT, WITHOUT ROWID;
