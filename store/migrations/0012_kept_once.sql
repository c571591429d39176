-- An agent sends its whole conversation with every turn, and an exact backend says the ids of all its tokens every time.
-- Whole blocks of them are here once: a block's hash covers that of the block before it, so the last one names them all.
CREATE TABLE prompt_blocks (
    hash   BLOB PRIMARY KEY,
    parent BLOB REFERENCES prompt_blocks (hash),
    ids    BLOB NOT NULL  -- int32
) STRICT;
CREATE INDEX prompt_blocks_parent ON prompt_blocks (parent);
-- The last block; what is left over, and a short prompt, and those from before, are in `prompt_token_ids`.
ALTER TABLE completions ADD COLUMN prompt_block BLOB REFERENCES prompt_blocks (hash);
CREATE INDEX completions_prompt_block ON completions (prompt_block) WHERE prompt_block IS NOT NULL;

-- And the same tools with every turn: what a request says beside its messages is here once, where that is much.
CREATE TABLE requests (
    hash BLOB PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;
ALTER TABLE completions ADD COLUMN request_hash BLOB REFERENCES requests (hash);  -- `request` is empty then
CREATE INDEX completions_request ON completions (request_hash) WHERE request_hash IS NOT NULL;
CREATE TRIGGER requests_go_with_their_last_completion AFTER DELETE ON completions
WHEN OLD.request_hash IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.request_hash = OLD.request_hash)
BEGIN
    DELETE FROM requests WHERE hash = OLD.request_hash;
END;
