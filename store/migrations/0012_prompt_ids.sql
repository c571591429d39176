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
