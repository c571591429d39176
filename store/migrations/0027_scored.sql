-- Which code of the user's own has looked at an episode: the sha256 of its file. It may have given a reward or none.
ALTER TABLE episodes ADD COLUMN scored_by TEXT;
