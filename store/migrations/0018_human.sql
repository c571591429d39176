-- Whether a person gave the rating. 0: a program's reward or a judge's label: no gate, monitor, list or share counts it.
ALTER TABLE ratings ADD COLUMN human INTEGER NOT NULL DEFAULT 1 CHECK (human IN (0, 1));
CREATE INDEX ratings_of_programs ON ratings (rater, live) WHERE human = 0;
DROP INDEX ratings_completion;
CREATE INDEX ratings_completion ON ratings (completion_id, live, human, value);
DROP INDEX ratings_days;
CREATE INDEX ratings_days ON ratings (created_at, value) WHERE live = 1 AND human = 1;

DROP TRIGGER listed_when_it_ends;
CREATE TRIGGER listed_when_it_ends AFTER UPDATE OF status ON completions
WHEN OLD.status = 'pending' AND NEW.status <> 'pending'
BEGIN
    INSERT INTO listed (seq, turn, model, version, session, conversation, rated, opinion)
    SELECT NEW.seq, NEW.turn, NEW.model, NEW.version, NEW.session, coalesce(NEW.conversation, NEW.seq),
        count(*), total(r.value)
    FROM ratings r WHERE r.completion_id = NEW.id AND +r.live = 1 AND +r.human = 1;
END;
DROP TRIGGER listed_with_a_new_rating;
CREATE TRIGGER listed_with_a_new_rating AFTER INSERT ON ratings WHEN NEW.live = 1
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r
        WHERE r.completion_id = NEW.completion_id AND +r.live = 1 AND +r.human = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = NEW.completion_id);
END;
DROP TRIGGER listed_without_an_old_rating;
CREATE TRIGGER listed_without_an_old_rating AFTER UPDATE OF live ON ratings
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r
        WHERE r.completion_id = NEW.completion_id AND +r.live = 1 AND +r.human = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = NEW.completion_id);
END;
DROP TRIGGER listed_without_a_forgotten_rating;
CREATE TRIGGER listed_without_a_forgotten_rating AFTER DELETE ON ratings WHEN OLD.live = 1
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r
        WHERE r.completion_id = OLD.completion_id AND +r.live = 1 AND +r.human = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = OLD.completion_id);
END;
