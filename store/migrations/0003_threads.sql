-- Agents change their system texts with every turn (dates, git status). In the tree they would make each turn a
-- new conversation, stored whole again; so they hang on the completion, and the tree has what was said.
CREATE TABLE completion_system (
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,  -- its place in the prompt
    hash          BLOB NOT NULL REFERENCES messages (hash),
    PRIMARY KEY (completion_id, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX completion_system_hash ON completion_system (hash);

-- The conversation up to and with the reply, by what no client changes when it sends it back. Completions from
-- before have the strict name, which is the same where there were no system texts and no tool calls.
ALTER TABLE completions ADD COLUMN thread BLOB;
UPDATE completions SET thread = reply_hash;
CREATE INDEX completions_thread ON completions (thread);
