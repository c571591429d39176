-- The key that rated, where the completion is another key's: a name there may be somebody else's.
ALTER TABLE ratings ADD COLUMN other_key TEXT;
