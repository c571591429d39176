-- Two versions compared on live traffic. One experiment runs at a time.
CREATE TABLE experiments (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    version    INTEGER NOT NULL,  -- the candidate
    against    INTEGER NOT NULL,  -- live while it runs
    share      REAL NOT NULL,     -- of conversations that get the candidate
    salt       BLOB NOT NULL,     -- the hash of it and of a conversation draws its arm
    actor      TEXT NOT NULL,     -- who began it
    started_at REAL NOT NULL,
    ended_at   REAL,
    outcome    TEXT,
    reason     TEXT,
    figures    TEXT               -- counts and evidence at its end, as JSON; nothing that anybody wrote
) STRICT;
CREATE UNIQUE INDEX experiments_one_runs ON experiments (ended_at IS NULL) WHERE ended_at IS NULL;

-- The turns of the conversations that it drew. They go with their completions.
CREATE TABLE experiment_turns (
    completion_id TEXT PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    experiment    INTEGER NOT NULL REFERENCES experiments (id),
    conversation  BLOB NOT NULL,  -- a salted hash
    is_candidate  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX experiment_turns_of ON experiment_turns (experiment, conversation, is_candidate);
