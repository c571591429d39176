-- Whom a message on a chat platform was for, by their id there; and when it was linked: `/rl good` means the newest.
ALTER TABLE links ADD COLUMN person TEXT;
ALTER TABLE links ADD COLUMN created_at REAL NOT NULL DEFAULT 0;
CREATE INDEX links_newest ON links (platform, channel, created_at);

-- The reactions that a person has on a message, as last heard of. Platforms send them twice and in any order: the
-- rating follows from these rows, not from the order in which events came.
CREATE TABLE reactions (
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    rater         TEXT NOT NULL,
    platform      TEXT NOT NULL,
    message       TEXT NOT NULL,  -- channel and message id
    emoji         TEXT NOT NULL,  -- empty: of all that this person has on the message
    value         REAL,           -- NULL: taken back, or it means nothing
    scale         TEXT NOT NULL,
    at            REAL NOT NULL,  -- when it happened, as the platform says
    rating_id     TEXT,           -- the rating that was made of it
    PRIMARY KEY (completion_id, rater, platform, message, emoji)
) STRICT, WITHOUT ROWID;

-- Events that were taken, for a while: a platform that is not sure sends one again.
CREATE TABLE webhook_events (
    platform TEXT NOT NULL,
    event_id TEXT NOT NULL,
    at       REAL NOT NULL,
    PRIMARY KEY (platform, event_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_events_at ON webhook_events (at);
