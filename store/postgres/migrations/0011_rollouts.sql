-- An answer that rlproxy sampled itself, for `train.reward`, is an episode of one turn. This is the completion whose
-- prompt it answers again; NULL: an episode of a program's.
ALTER TABLE episodes ADD COLUMN prompt text COLLATE "C";
CREATE INDEX episodes_prompt ON episodes (prompt, version) WHERE prompt IS NOT NULL;
