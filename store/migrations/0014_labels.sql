-- A rating that says what the rater's last one that a run took has said names that one here: each trains once.
ALTER TABLE ratings ADD COLUMN repeats TEXT;

-- An import used to believe any time. One before 1970 becomes 1970, and one after 2100 becomes now.
UPDATE completions SET created_at = iif(created_at < 0, 0, CAST(strftime('%s', 'now') AS REAL))
WHERE created_at < 0 OR created_at > 4102444800;
UPDATE completions SET finished_at = created_at WHERE finished_at < 0 OR finished_at > 4102444800;
UPDATE ratings SET created_at = iif(created_at < 0, 0, CAST(strftime('%s', 'now') AS REAL))
WHERE created_at < 0 OR created_at > 4102444800;
