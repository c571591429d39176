-- What a request goes on from: the loose name of its conversation up to the newest reply in it. NULL: none, or not kept.
ALTER TABLE completions ADD COLUMN above BLOB;
-- All that a person typed in its newest message, where that is certain; only such words may become a hint.
ALTER TABLE completions ADD COLUMN typed TEXT;
-- Which tool results in its newest turn the client marked as errors: ids of calls, as JSON.
ALTER TABLE completions ADD COLUMN tool_errors TEXT;

-- What happened after a completion, and what a rule or a judge says it means. A signal is not a rating.
CREATE TABLE signals (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    kind          TEXT NOT NULL CHECK (kind IN ('message', 'tool', 'regenerated', 'edited', 'aborted', 'copied', 'own')),
    next_id       TEXT REFERENCES completions (id) ON DELETE SET NULL,  -- the request in which it was seen
    said          TEXT NOT NULL,  -- the person's own words, or the beginning of a tool's result
    created_at    REAL NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('waiting', 'labelled', 'dropped')),
    label         TEXT,
    value         REAL NOT NULL DEFAULT 0 CHECK (value BETWEEN -1 AND 1),
    judge         TEXT,  -- whose label it is: a model's name, or 'rules'
    config        TEXT,  -- that judge's prompts and votes: another one is another judge
    hint          TEXT,  -- the part of `said` that says what should have been done, word for word
    why           TEXT,
    labelled_at   REAL,
    tokens        INTEGER NOT NULL DEFAULT 0,
    rating_id     TEXT  -- that the label became last
) STRICT;
CREATE UNIQUE INDEX signals_once ON signals (completion_id, kind, coalesce(next_id, ''));
CREATE INDEX signals_next ON signals (next_id);
CREATE INDEX signals_waiting ON signals (seq) WHERE state = 'waiting';
CREATE INDEX signals_labelled ON signals (judge, config, labelled_at) WHERE state = 'labelled';
-- The words were in the next request: they go with it. What was learned of them, a label, stays with the answer.
CREATE TRIGGER signals_lose_their_words BEFORE DELETE ON completions
BEGIN
    UPDATE signals SET said = '', hint = NULL, state = iif(state = 'waiting', 'dropped', state),
        why = iif(state = 'waiting', 'what was said is not kept any more', why)
    WHERE next_id = OLD.id;
END;
-- What was captured before is not looked at.
INSERT INTO meta SELECT 'signals_after', CAST(coalesce(max(seq), 0) AS TEXT) FROM completions;
INSERT INTO meta SELECT 'signals_ended', CAST(coalesce(max(seq), 0) AS TEXT) FROM completions;
