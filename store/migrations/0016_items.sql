-- The ids that a backend gave to the items of an answer: a client may name one in place of sending it again. They are
-- not unique: some servers count from one after each start.
CREATE TABLE items (
    id            TEXT NOT NULL,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,  -- its place in the answer
    kind          TEXT NOT NULL,     -- message, function_call, reasoning, …
    PRIMARY KEY (id, completion_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX items_completion ON items (completion_id);
