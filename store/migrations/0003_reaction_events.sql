-- Matrix takes a reaction back by the id of its event, and says nothing else of it.
ALTER TABLE reactions ADD COLUMN event_id TEXT;
CREATE INDEX reactions_event ON reactions (platform, event_id);
