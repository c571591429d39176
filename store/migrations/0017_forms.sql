-- How the messages of a prompt were written, as JSON: white space, parts, the reasoning of the turn that goes on. What a
-- server read is made of it. NULL: not known, as for all from before.
ALTER TABLE completions ADD COLUMN forms TEXT;
