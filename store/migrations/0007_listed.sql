-- What the person said last, for lists and the search; the whole conversation is in the tree.
ALTER TABLE completions ADD COLUMN asked TEXT NOT NULL DEFAULT '';

-- Each completion that ended, with what lists are filtered by: rows so narrow that reading thousands of them takes
-- milliseconds, whatever the filters. Triggers keep it; `opinion` is the sum of the live ratings.
CREATE TABLE listed (
    seq      INTEGER PRIMARY KEY REFERENCES completions (seq) ON DELETE CASCADE,
    turn     TEXT NOT NULL,
    model    TEXT NOT NULL,
    version  INTEGER,
    session  TEXT,
    rated    INTEGER NOT NULL DEFAULT 0,
    opinion  REAL NOT NULL DEFAULT 0,
    searched INTEGER NOT NULL DEFAULT 0  -- whether its words are in the search
) STRICT;
CREATE INDEX listed_session ON listed (session) WHERE session IS NOT NULL;
CREATE INDEX listed_model ON listed (model);
CREATE INDEX listed_version ON listed (version);
CREATE INDEX listed_unrated ON listed (seq) WHERE rated = 0;
CREATE INDEX listed_opinions ON listed (version, turn, opinion) WHERE rated > 0;
CREATE INDEX listed_unsearched ON listed (seq) WHERE searched = 0;
-- Ratings by day.
CREATE INDEX ratings_days ON ratings (created_at, value) WHERE live = 1;

INSERT INTO listed (seq, turn, model, version, session, rated, opinion)
SELECT c.seq, c.turn, c.model, c.version, c.session, count(r.seq), total(r.value)
FROM completions c LEFT JOIN ratings r ON r.completion_id = c.id AND +r.live = 1
WHERE c.status <> 'pending' GROUP BY c.seq;

CREATE TRIGGER listed_when_it_ends AFTER UPDATE OF status ON completions
WHEN OLD.status = 'pending' AND NEW.status <> 'pending'
BEGIN
    INSERT INTO listed (seq, turn, model, version, session, rated, opinion)
    SELECT NEW.seq, NEW.turn, NEW.model, NEW.version, NEW.session, count(*), total(r.value)
    FROM ratings r WHERE r.completion_id = NEW.id AND +r.live = 1;
END;
CREATE TRIGGER listed_with_a_new_rating AFTER INSERT ON ratings WHEN NEW.live = 1
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r WHERE r.completion_id = NEW.completion_id AND +r.live = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = NEW.completion_id);
END;
CREATE TRIGGER listed_without_an_old_rating AFTER UPDATE OF live ON ratings
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r WHERE r.completion_id = NEW.completion_id AND +r.live = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = NEW.completion_id);
END;
CREATE TRIGGER listed_without_a_forgotten_rating AFTER DELETE ON ratings WHEN OLD.live = 1
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r WHERE r.completion_id = OLD.completion_id AND +r.live = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = OLD.completion_id);
END;

-- The words of completions and what was asked. Only the index: the texts are above. It is filled behind the capture
-- (`listed.searched`), so that no answer waits for it.
-- Beginnings of three and four letters have an index of their own: longer ones are those of few words.
CREATE VIRTUAL TABLE search USING fts5(
    asked, text, content = '', tokenize = 'unicode61 remove_diacritics 2', prefix = '3 4');
CREATE TRIGGER search_forgets BEFORE DELETE ON completions
WHEN (SELECT l.searched FROM listed l WHERE l.seq = OLD.seq) = 1
BEGIN
    INSERT INTO search (search, rowid, asked, text)
    VALUES ('delete', OLD.seq, OLD.asked, substr(OLD.text, 1, 4000));
END;
