-- Messages in the order in which they came, and their hashes in an index of their own. By hash each was a row in another
-- place of the table: two thirds of the pages that one answer had to write.
CREATE TABLE messages_in_order (
    hash   BLOB NOT NULL UNIQUE,
    parent BLOB REFERENCES messages (hash),
    role   TEXT NOT NULL,
    body   BLOB NOT NULL,  -- JSON without its role; where `cut`, without its blobs
    cut    INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO messages_in_order SELECT hash, parent, role, body, cut FROM messages;
DROP TABLE messages;
ALTER TABLE messages_in_order RENAME TO messages;
CREATE INDEX messages_parent ON messages (parent);
