-- Pictures, sounds and files come as base64 inside messages, the same ones with every turn that repeats them. Their
-- bytes are here once; the message keeps its place in the tree and its hash, which is still that of the whole body.
CREATE TABLE blobs (
    hash BLOB PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- What was cut out of a message's body, and where.
CREATE TABLE message_blobs (
    message BLOB NOT NULL REFERENCES messages (hash) ON DELETE CASCADE,
    at      INTEGER NOT NULL,  -- the byte of the stored body before which it goes
    blob    BLOB NOT NULL REFERENCES blobs (hash),
    coded   INTEGER NOT NULL,  -- whether the body has it as base64, or as these very bytes
    PRIMARY KEY (message, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX message_blobs_blob ON message_blobs (blob);
CREATE TRIGGER blobs_go_with_their_last_message AFTER DELETE ON message_blobs
WHEN NOT EXISTS (SELECT 1 FROM message_blobs m WHERE m.blob = OLD.blob)
BEGIN
    DELETE FROM blobs WHERE hash = OLD.blob;
END;
ALTER TABLE messages ADD COLUMN cut INTEGER NOT NULL DEFAULT 0;  -- whether something was

-- Why a completion never trains, in one word: has_image, raw, … The prompt in the tree is not all that the model saw.
ALTER TABLE completions ADD COLUMN untrainable TEXT;
