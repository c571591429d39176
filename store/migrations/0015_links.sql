-- The key that made a link: no other may lead that message to another completion. Bots link what they asked for.
ALTER TABLE links ADD COLUMN key TEXT;
UPDATE links SET key = (SELECT c.key FROM completions c WHERE c.id = links.completion_id);

-- An event is its rater's: of two people whose events a gateway names alike, each has their own.
DROP INDEX ratings_event;
CREATE UNIQUE INDEX ratings_event ON ratings (source, source_event_id, rater) WHERE source_event_id IS NOT NULL;
