-- Pictures among the blobs: what a process of its own found in each, and a small copy for the page.
CREATE TABLE images (
    blob      BLOB PRIMARY KEY REFERENCES blobs (hash) ON DELETE CASCADE,
    coded     INTEGER NOT NULL,  -- 0: the blob is base64 as its client wrote it, and is decoded when it is read
    state     TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'decoded', 'refused')),
    sha256    BLOB,     -- of its bytes; NULL: not known yet
    size      INTEGER,  -- bytes
    format    TEXT,     -- PNG, JPEG, GIF, WEBP
    width     INTEGER,  -- pixels
    height    INTEGER,
    thumbnail BLOB,     -- encoded anew: nothing of the original's bytes is in it
    reason    TEXT      -- why it was refused
) STRICT;
CREATE INDEX images_waiting ON images (blob) WHERE state = 'waiting';
CREATE INDEX images_sha256 ON images (sha256) WHERE sha256 IS NOT NULL;

INSERT INTO images (blob, coded)
SELECT b.hash, 1 FROM blobs b
WHERE (substr(b.data, 1, 4) IN (x'89504e47', x'47494638') OR substr(b.data, 1, 3) = x'ffd8ff'
    OR (substr(b.data, 1, 4) = x'52494646' AND substr(b.data, 9, 4) = x'57454250'))
AND EXISTS (SELECT 1 FROM message_blobs m WHERE m.blob = b.hash AND m.coded = 1);

-- How many pictures a prompt has, and which prompts have one that was never sent along.
ALTER TABLE completions ADD COLUMN images INTEGER NOT NULL DEFAULT 0;

CREATE TEMP TABLE pictures AS
WITH RECURSIVE path (id, hash) AS (
    SELECT c.id, c.prompt_hash FROM completions c WHERE c.untrainable = 'has_image'
    UNION SELECT s.completion_id, s.hash FROM completions c JOIN completion_system s ON s.completion_id = c.id
        WHERE c.untrainable = 'has_image'
    UNION SELECT p.id, m.parent FROM path p JOIN messages m ON m.hash = p.hash WHERE m.parent IS NOT NULL)
SELECT path.id AS id, count(*) AS images,
    max(coalesce(json_extract(part.value, '$.image_url.url'), json_extract(part.value, '$.image_url'), '')
        NOT LIKE 'data:%') AS remote
FROM path JOIN messages m ON m.hash = path.hash
JOIN json_each(CASE WHEN json_valid(CAST(m.body AS TEXT)) THEN CAST(m.body AS TEXT) ELSE '{}' END, '$.content') part
WHERE CASE WHEN part.type = 'object' THEN json_extract(part.value, '$.type') END
    IN ('image_url', 'image', 'input_image')
GROUP BY path.id;
UPDATE completions SET images = (SELECT p.images FROM pictures p WHERE p.id = completions.id),
    untrainable = (SELECT iif(p.remote, 'remote_image', 'has_image') FROM pictures p WHERE p.id = completions.id)
WHERE id IN (SELECT id FROM pictures);
DROP TABLE pictures;
