-- Two signals of one answer may both lose the request in which they were seen: that must not keep it from being deleted.
ALTER TABLE signals ADD COLUMN orphan INTEGER NOT NULL DEFAULT 0;  -- its own `seq`, once that request is deleted
DROP INDEX signals_once;
CREATE UNIQUE INDEX signals_once ON signals (completion_id, kind, coalesce(next_id, ''), orphan);
DROP TRIGGER signals_lose_their_words;
-- The words were in the next request: they go with it. What was learned of them, a label, stays with the answer.
CREATE TRIGGER signals_lose_their_words BEFORE DELETE ON completions
BEGIN
    UPDATE signals SET said = '', hint = NULL, orphan = seq, state = iif(state = 'waiting', 'dropped', state),
        why = iif(state = 'waiting', 'what was said is not kept any more', why)
    WHERE next_id = OLD.id;
END;
