-- A run that a person cancelled has not failed. SQLite has no other way to widen a CHECK: the table is on disk as it was.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''empty'', ''failed'')', '''empty'', ''failed'', ''cancelled'')')
WHERE type = 'table' AND name = 'runs';
PRAGMA writable_schema = RESET;

-- Rated prompts that a version and the one before it answered as it was made, the best to show first. They go with the
-- prompt, and with any answer that the version learned from: its words may be of it.
CREATE TABLE answer_pairs (
    version       INTEGER NOT NULL REFERENCES adapters (version),
    position      INTEGER NOT NULL,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    parent_answer TEXT NOT NULL,
    answer        TEXT NOT NULL,
    PRIMARY KEY (version, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX answer_pairs_completion ON answer_pairs (completion_id);
