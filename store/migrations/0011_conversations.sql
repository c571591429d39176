-- Which conversation a completion is a turn of: the seq of its first turn. NULL: it is the first turn itself.
ALTER TABLE completions ADD COLUMN conversation INTEGER;
-- For lists, always filled.
ALTER TABLE listed ADD COLUMN conversation INTEGER NOT NULL DEFAULT 0;
CREATE INDEX listed_conversation ON listed (conversation);

DROP TRIGGER listed_when_it_ends;
CREATE TRIGGER listed_when_it_ends AFTER UPDATE OF status ON completions
WHEN OLD.status = 'pending' AND NEW.status <> 'pending'
BEGIN
    INSERT INTO listed (seq, turn, model, version, session, conversation, rated, opinion)
    SELECT NEW.seq, NEW.turn, NEW.model, NEW.version, NEW.session, coalesce(NEW.conversation, NEW.seq),
        count(*), total(r.value)
    FROM ratings r WHERE r.completion_id = NEW.id AND +r.live = 1;
END;

-- The triggers of `listed` count the ratings of a completion with each one that is given: from the index alone.
DROP INDEX ratings_completion;
CREATE INDEX ratings_completion ON ratings (completion_id, live, value);
