-- One node of the conversation tree: its hash covers its parent, so a prompt sent again is the same nodes.
CREATE TABLE messages (
    hash   BLOB PRIMARY KEY,
    parent BLOB REFERENCES messages (hash),
    role   TEXT NOT NULL,
    body   BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_parent ON messages (parent);

CREATE TABLE completions (
    seq              INTEGER PRIMARY KEY AUTOINCREMENT,
    id               TEXT NOT NULL UNIQUE,
    request_id       TEXT NOT NULL,
    choice           INTEGER NOT NULL,
    created_at       REAL NOT NULL,
    dialect          TEXT NOT NULL,
    backend          TEXT NOT NULL,
    model            TEXT NOT NULL,
    served_model     TEXT NOT NULL,
    version          INTEGER,
    session          TEXT,
    user             TEXT,
    turn             TEXT NOT NULL CHECK (turn IN ('main', 'side')),
    turn_rule        TEXT NOT NULL,
    streamed         INTEGER NOT NULL,
    sampling         TEXT NOT NULL,
    request          BLOB NOT NULL,
    prompt_hash      BLOB REFERENCES messages (hash),
    status           TEXT NOT NULL CHECK (status IN ('pending', 'done', 'partial', 'error')),
    finished_at      REAL,
    reply_hash       BLOB REFERENCES messages (hash),
    text             TEXT NOT NULL DEFAULT '',
    finish_reason    TEXT,
    usage            TEXT,
    exact            INTEGER NOT NULL DEFAULT 0,
    inexact_reason   TEXT,
    error            TEXT,
    prompt_token_ids BLOB,  -- int32
    token_ids        BLOB,  -- int32
    logprobs         BLOB   -- float32
) STRICT;
-- Every index ends in seq by itself, so each of these also gives its rows newest first.
CREATE INDEX completions_status ON completions (status, turn);
CREATE INDEX completions_session ON completions (session) WHERE session IS NOT NULL;
CREATE INDEX completions_user ON completions (user) WHERE user IS NOT NULL;
CREATE INDEX completions_version ON completions (version);
CREATE INDEX completions_created ON completions (created_at);
CREATE INDEX completions_prompt ON completions (prompt_hash);
CREATE INDEX completions_reply ON completions (reply_hash);

-- All ratings ever given; a rater has at most one live rating of a completion.
CREATE TABLE ratings (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    completion_id   TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    rater           TEXT NOT NULL,
    value           REAL NOT NULL CHECK (value BETWEEN -1 AND 1),
    comment         TEXT,
    correction      TEXT,
    weight          REAL NOT NULL CHECK (weight > 0),
    source          TEXT NOT NULL,
    source_event_id TEXT,
    created_at      REAL NOT NULL,
    live            INTEGER NOT NULL,
    retracted_at    REAL,
    replaced        TEXT
) STRICT;
CREATE UNIQUE INDEX ratings_one_live ON ratings (completion_id, rater) WHERE live = 1;
CREATE UNIQUE INDEX ratings_event ON ratings (source, source_event_id) WHERE source_event_id IS NOT NULL;
CREATE INDEX ratings_completion ON ratings (completion_id);
CREATE INDEX ratings_live ON ratings (live);
CREATE INDEX ratings_rater ON ratings (rater, live);

CREATE TABLE links (
    platform      TEXT NOT NULL,
    channel       TEXT NOT NULL,
    message_id    TEXT NOT NULL,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    PRIMARY KEY (platform, channel, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX links_completion ON links (completion_id);

CREATE TABLE runs (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    status     TEXT NOT NULL CHECK (status IN ('claimed', 'running', 'done', 'rejected', 'empty', 'failed')),
    model      TEXT NOT NULL,
    version    INTEGER NOT NULL,
    parent     INTEGER NOT NULL,
    folder     TEXT NOT NULL,
    attempts   INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at   REAL,
    reason     TEXT,
    samples    INTEGER NOT NULL,
    held       INTEGER NOT NULL,
    result     TEXT
) STRICT;
CREATE INDEX runs_status ON runs (status);

CREATE TABLE run_samples (
    run_id    INTEGER NOT NULL REFERENCES runs (id),
    rating_id TEXT NOT NULL REFERENCES ratings (id) ON DELETE CASCADE,
    split     TEXT NOT NULL CHECK (split IN ('train', 'held')),
    PRIMARY KEY (run_id, rating_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_samples_rating ON run_samples (rating_id);

CREATE TABLE adapters (
    version    INTEGER PRIMARY KEY,
    parent     INTEGER NOT NULL,
    run_id     INTEGER REFERENCES runs (id),
    model      TEXT NOT NULL,
    path       TEXT NOT NULL,
    created_at REAL NOT NULL,
    manifest   TEXT NOT NULL
) STRICT;

CREATE TABLE pointer (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    live       INTEGER NOT NULL,
    previous   INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    reason     TEXT NOT NULL
) STRICT;
INSERT INTO pointer VALUES (1, 0, 0, 0, 'the base model');

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    actor  TEXT NOT NULL,
    act    TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
