-- What a person has said of a lesson: a comment on a disliked answer that acts at once (`lessons.enabled`). A lesson is
-- the live rating itself; a row is here only where something was said of it. `text`: the person's own new words.
CREATE TABLE lessons (
    rating_id  TEXT PRIMARY KEY REFERENCES ratings (id) ON DELETE CASCADE,
    text       TEXT,
    always     INTEGER NOT NULL DEFAULT 0 CHECK (always IN (0, 1)),  -- whatever is asked
    ended      TEXT CHECK (ended IN ('removed', 'retired')),
    why        TEXT,
    changed_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
-- Which lessons were in a completion's prompt, in their order, word for word; `left_out`: which would have been, but for
-- the comparison with a version that has learned them.
CREATE TABLE completion_lessons (
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,
    rating_id     TEXT NOT NULL,
    text          TEXT NOT NULL,
    left_out      INTEGER NOT NULL CHECK (left_out IN (0, 1)),
    PRIMARY KEY (completion_id, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX completion_lessons_rating ON completion_lessons (rating_id);
