-- Keys that were handed out. The secret itself is nowhere: only its SHA-256, which is enough for 256 random bits.
CREATE TABLE keys (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('use', 'rate', 'admin')),
    hash       BLOB NOT NULL,
    created_at REAL NOT NULL,
    last_used  REAL,
    revoked_at REAL
) STRICT, WITHOUT ROWID;
-- A name is whose ratings these are: one key at a time has it.
CREATE UNIQUE INDEX keys_name ON keys (name) WHERE revoked_at IS NULL;
