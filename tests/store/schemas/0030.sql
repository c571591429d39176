BEGIN TRANSACTION;
CREATE TABLE adapters (
    version    INTEGER PRIMARY KEY,
    parent     INTEGER NOT NULL,
    run_id     INTEGER REFERENCES runs (id),
    model      TEXT NOT NULL,
    path       TEXT NOT NULL,
    created_at REAL NOT NULL,
    manifest   TEXT NOT NULL
, withdrawn TEXT) STRICT;
INSERT INTO "adapters" VALUES(1,0,NULL,'m','/v1',3.0,'{}',NULL);
CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    actor  TEXT NOT NULL,
    act    TEXT NOT NULL,
    detail TEXT NOT NULL
, hash BLOB) STRICT;
INSERT INTO "audit" VALUES(1,1.79578593710134410852e+09,'admin','promote','{"version":1}',X'C947077EBB30A0A600D6EED2566183DFBE77F58DCF8AF080FE1B33010C7F4286');
INSERT INTO "audit" VALUES(2,1.79578593710140490529e+09,'admin','pause','{}',X'624DAE2437CED9694A91020613F3CBA21F4C40A657CBDB181659D05F19D9A6D9');
CREATE TABLE blobs (
    hash BLOB PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;
CREATE TABLE completion_lessons (
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,
    rating_id     TEXT NOT NULL,
    text          TEXT NOT NULL,
    left_out      INTEGER NOT NULL CHECK (left_out IN (0, 1)),
    PRIMARY KEY (completion_id, at)
) STRICT, WITHOUT ROWID;
CREATE TABLE completion_system (
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,  -- its place in the prompt
    hash          BLOB NOT NULL REFERENCES messages (hash),
    PRIMARY KEY (completion_id, at)
) STRICT, WITHOUT ROWID;
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
, thread BLOB, translated INTEGER NOT NULL DEFAULT 0, untrainable TEXT, asked TEXT NOT NULL DEFAULT '', redacted TEXT, conversation INTEGER, prompt_block BLOB REFERENCES prompt_blocks (hash), request_hash BLOB REFERENCES requests (hash), key TEXT, forms TEXT, above BLOB, typed TEXT, tool_errors TEXT, pieces BLOB, logprobs_of TEXT) STRICT;
INSERT INTO "completions" VALUES(1,'rl-a','rl-a',0,1.0,'chat','vllm','m','m@v1',1,NULL,NULL,'main','default',0,'{}',X'7B7D',X'01','done',2.0,X'02','hello',NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,'',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE episodes (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL,  -- the session's name
    key         TEXT NOT NULL,  -- of its completions; '' where they are from before keys were kept
    posted      INTEGER NOT NULL,  -- 1: opened by a call of its own, 0: by its first request or its reward
    task        TEXT,
    team        TEXT,  -- its group: several attempts at one task
    team_size   INTEGER,
    split       TEXT NOT NULL CHECK (split IN ('train', 'eval')),
    meta        TEXT,
    version     INTEGER,  -- that all its requests get; NULL: not pinned
    opened_at   REAL NOT NULL,
    reward      REAL CHECK (reward BETWEEN -1 AND 1),
    comment     TEXT,
    error       TEXT,  -- why its reward says nothing
    rewarded_at REAL,
    ended_at    REAL,
    left_out    TEXT, taken INTEGER NOT NULL DEFAULT 0, scored_by TEXT,  -- why it never trains
    UNIQUE (id, key)
) STRICT;
CREATE TABLE guesses (
    completion_id TEXT PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    odds          REAL NOT NULL,
    run_id        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE items (
    id            TEXT NOT NULL,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,  -- its place in the answer
    kind          TEXT NOT NULL,     -- message, function_call, reasoning, …
    PRIMARY KEY (id, completion_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE judged_pairs (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    better        TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    worse         TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    judge         TEXT NOT NULL,
    config        TEXT NOT NULL,  -- that judge's prompt: another one is another judge
    created_at    REAL NOT NULL,
    better_rating TEXT,  -- that the pair became last
    worse_rating  TEXT
) STRICT;
CREATE TABLE keys (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('use', 'rate', 'admin')),
    hash       BLOB NOT NULL,
    created_at REAL NOT NULL,
    last_used  REAL,
    revoked_at REAL
) STRICT, WITHOUT ROWID;
CREATE TABLE lessons (
    rating_id  TEXT PRIMARY KEY REFERENCES ratings (id) ON DELETE CASCADE,
    text       TEXT,
    always     INTEGER NOT NULL DEFAULT 0 CHECK (always IN (0, 1)),  -- whatever is asked
    ended      TEXT CHECK (ended IN ('removed', 'retired')),
    why        TEXT,
    changed_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE links (
    platform      TEXT NOT NULL,
    channel       TEXT NOT NULL,
    message_id    TEXT NOT NULL,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE, person TEXT, created_at REAL NOT NULL DEFAULT 0, key TEXT,
    PRIMARY KEY (platform, channel, message_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "links" VALUES('slack','C1','1','rl-a',NULL,0.0,NULL);
CREATE TABLE listed (
    seq      INTEGER PRIMARY KEY REFERENCES completions (seq) ON DELETE CASCADE,
    turn     TEXT NOT NULL,
    model    TEXT NOT NULL,
    version  INTEGER,
    session  TEXT,
    rated    INTEGER NOT NULL DEFAULT 0,
    opinion  REAL NOT NULL DEFAULT 0,
    searched INTEGER NOT NULL DEFAULT 0  -- whether its words are in the search
, conversation INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE message_blobs (
    message BLOB NOT NULL REFERENCES messages (hash) ON DELETE CASCADE,
    at      INTEGER NOT NULL,  -- the byte of the stored body before which it goes
    blob    BLOB NOT NULL REFERENCES blobs (hash),
    coded   INTEGER NOT NULL,  -- whether the body has it as base64, or as these very bytes
    PRIMARY KEY (message, at)
) STRICT, WITHOUT ROWID;
CREATE TABLE "messages" (
    hash   BLOB NOT NULL UNIQUE,
    parent BLOB REFERENCES messages (hash),
    role   TEXT NOT NULL,
    body   BLOB NOT NULL,  -- JSON without its role; where `cut`, without its blobs
    cut    INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "messages" VALUES(X'01',NULL,'user',X'7B22636F6E74656E74223A226869227D',0);
INSERT INTO "messages" VALUES(X'02',X'01','assistant',X'7B22636F6E74656E74223A2268656C6C6F227D',0);
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "meta" VALUES('baseline','0.25');
INSERT INTO "meta" VALUES('ranked_after','0');
INSERT INTO "meta" VALUES('signals_after','0');
INSERT INTO "meta" VALUES('signals_ended','0');
CREATE TABLE pointer (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    live       INTEGER NOT NULL,
    previous   INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    reason     TEXT NOT NULL
, actor TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "pointer" VALUES(1,1,0,4.0,'run 1 passed the gate','');
CREATE TABLE prompt_blocks (
    hash   BLOB PRIMARY KEY,
    parent BLOB REFERENCES prompt_blocks (hash),
    ids    BLOB NOT NULL  -- int32
) STRICT;
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
, scale TEXT NOT NULL DEFAULT 'unit' CHECK (scale IN ('thumb', 'stars', 'unit')), repeats TEXT, human INTEGER NOT NULL DEFAULT 1 CHECK (human IN (0, 1)), other_key TEXT) STRICT;
INSERT INTO "ratings" VALUES(1,'rt-1','rl-a','owner',1.0,'so kind',NULL,1.0,'http',NULL,2.0,1,NULL,NULL,'unit',NULL,1,NULL);
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
CREATE TABLE requests (
    hash BLOB PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE run_episodes (
    run_id  INTEGER NOT NULL REFERENCES runs (id),
    episode INTEGER NOT NULL REFERENCES episodes (seq) ON DELETE CASCADE,
    PRIMARY KEY (run_id, episode)
) STRICT, WITHOUT ROWID;
CREATE TABLE run_samples (
    run_id    INTEGER NOT NULL REFERENCES runs (id),
    rating_id TEXT NOT NULL REFERENCES ratings (id) ON DELETE CASCADE,
    split     TEXT NOT NULL CHECK (split IN ('train', 'held')),
    PRIMARY KEY (run_id, rating_id)
) STRICT, WITHOUT ROWID;
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
PRAGMA writable_schema=ON;
INSERT INTO sqlite_master(type,name,tbl_name,rootpage,sql)VALUES('table','search','search',0,'CREATE VIRTUAL TABLE search USING fts5(
    asked, text, content = '''', tokenize = ''unicode61 remove_diacritics 2'', prefix = ''3 4'')');
CREATE TABLE 'search_config'(k PRIMARY KEY, v) WITHOUT ROWID;
INSERT INTO "search_config" VALUES('version',4);
CREATE TABLE 'search_data'(id INTEGER PRIMARY KEY, block BLOB);
INSERT INTO "search_data" VALUES(1,X'');
INSERT INTO "search_data" VALUES(10,X'00000000000000');
CREATE TABLE 'search_docsize'(id INTEGER PRIMARY KEY, sz BLOB);
CREATE TABLE 'search_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID;
CREATE TABLE signals (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    kind          TEXT NOT NULL CHECK (kind IN ('message', 'tool', 'regenerated', 'edited', 'aborted', 'copied', 'own')),
    next_id       TEXT REFERENCES completions (id) ON DELETE SET NULL,  -- the request in which it was seen
    said          TEXT NOT NULL,  -- the person's own words, or the beginning of a tool's result
    created_at    REAL NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('waiting', 'labelled', 'dropped')),
    label         TEXT,
    value         REAL NOT NULL DEFAULT 0 CHECK (value BETWEEN -1 AND 1),
    judge         TEXT,  -- whose label it is: a model's name, or 'rules'
    config        TEXT,  -- that judge's prompts and votes: another one is another judge
    hint          TEXT,  -- the part of `said` that says what should have been done, word for word
    why           TEXT,
    labelled_at   REAL,
    tokens        INTEGER NOT NULL DEFAULT 0,
    rating_id     TEXT  -- that the label became last
, orphan INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE turn_rewards (
    episode       INTEGER NOT NULL REFERENCES episodes (seq) ON DELETE CASCADE,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    value         REAL NOT NULL CHECK (value BETWEEN -1 AND 1),
    at            REAL NOT NULL,
    PRIMARY KEY (episode, completion_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE webhook_events (
    platform TEXT NOT NULL,
    event_id TEXT NOT NULL,
    at       REAL NOT NULL,
    PRIMARY KEY (platform, event_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX completions_status ON completions (status, turn);
CREATE INDEX completions_session ON completions (session) WHERE session IS NOT NULL;
CREATE INDEX completions_user ON completions (user) WHERE user IS NOT NULL;
CREATE INDEX completions_version ON completions (version);
CREATE INDEX completions_created ON completions (created_at);
CREATE INDEX completions_prompt ON completions (prompt_hash);
CREATE INDEX completions_reply ON completions (reply_hash);
CREATE UNIQUE INDEX ratings_one_live ON ratings (completion_id, rater) WHERE live = 1;
CREATE INDEX ratings_live ON ratings (live);
CREATE INDEX ratings_rater ON ratings (rater, live);
CREATE INDEX links_completion ON links (completion_id);
CREATE INDEX runs_status ON runs (status);
CREATE INDEX run_samples_rating ON run_samples (rating_id);
CREATE INDEX completion_system_hash ON completion_system (hash);
CREATE INDEX completions_thread ON completions (thread);
CREATE INDEX message_blobs_blob ON message_blobs (blob);
CREATE TRIGGER blobs_go_with_their_last_message AFTER DELETE ON message_blobs
WHEN NOT EXISTS (SELECT 1 FROM message_blobs m WHERE m.blob = OLD.blob)
BEGIN
    DELETE FROM blobs WHERE hash = OLD.blob;
END;
CREATE INDEX links_newest ON links (platform, channel, created_at);
CREATE INDEX webhook_events_at ON webhook_events (at);
CREATE INDEX listed_session ON listed (session) WHERE session IS NOT NULL;
CREATE INDEX listed_model ON listed (model);
CREATE INDEX listed_version ON listed (version);
CREATE INDEX listed_unrated ON listed (seq) WHERE rated = 0;
CREATE INDEX listed_opinions ON listed (version, turn, opinion) WHERE rated > 0;
CREATE INDEX listed_unsearched ON listed (seq) WHERE searched = 0;
CREATE TRIGGER search_forgets BEFORE DELETE ON completions
WHEN (SELECT l.searched FROM listed l WHERE l.seq = OLD.seq) = 1
BEGIN
    INSERT INTO search (search, rowid, asked, text)
    VALUES ('delete', OLD.seq, OLD.asked, substr(OLD.text, 1, 4000));
END;
CREATE TRIGGER audit_lines_stay_as_they_are BEFORE UPDATE ON audit WHEN OLD.hash IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_lines_stay BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE UNIQUE INDEX keys_name ON keys (name) WHERE revoked_at IS NULL;
CREATE INDEX listed_conversation ON listed (conversation);
CREATE INDEX prompt_blocks_parent ON prompt_blocks (parent);
CREATE INDEX completions_prompt_block ON completions (prompt_block) WHERE prompt_block IS NOT NULL;
CREATE INDEX completions_request ON completions (request_hash) WHERE request_hash IS NOT NULL;
CREATE TRIGGER requests_go_with_their_last_completion AFTER DELETE ON completions
WHEN OLD.request_hash IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.request_hash = OLD.request_hash)
BEGIN
    DELETE FROM requests WHERE hash = OLD.request_hash;
END;
CREATE INDEX completions_key ON completions (key, user);
CREATE UNIQUE INDEX ratings_event ON ratings (source, source_event_id, rater) WHERE source_event_id IS NOT NULL;
CREATE INDEX items_completion ON items (completion_id);
CREATE INDEX ratings_of_programs ON ratings (rater, live) WHERE human = 0;
CREATE INDEX ratings_completion ON ratings (completion_id, live, human, value);
CREATE INDEX ratings_days ON ratings (created_at, value) WHERE live = 1 AND human = 1;
CREATE TRIGGER listed_when_it_ends AFTER UPDATE OF status ON completions
WHEN OLD.status = 'pending' AND NEW.status <> 'pending'
BEGIN
    INSERT INTO listed (seq, turn, model, version, session, conversation, rated, opinion)
    SELECT NEW.seq, NEW.turn, NEW.model, NEW.version, NEW.session, coalesce(NEW.conversation, NEW.seq),
        count(*), total(r.value)
    FROM ratings r WHERE r.completion_id = NEW.id AND +r.live = 1 AND +r.human = 1;
END;
CREATE TRIGGER listed_with_a_new_rating AFTER INSERT ON ratings WHEN NEW.live = 1
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r
        WHERE r.completion_id = NEW.completion_id AND +r.live = 1 AND +r.human = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = NEW.completion_id);
END;
CREATE TRIGGER listed_without_an_old_rating AFTER UPDATE OF live ON ratings
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r
        WHERE r.completion_id = NEW.completion_id AND +r.live = 1 AND +r.human = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = NEW.completion_id);
END;
CREATE TRIGGER listed_without_a_forgotten_rating AFTER DELETE ON ratings WHEN OLD.live = 1
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), total(r.value) FROM ratings r
        WHERE r.completion_id = OLD.completion_id AND +r.live = 1 AND +r.human = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = OLD.completion_id);
END;
CREATE INDEX episodes_team ON episodes (team) WHERE team IS NOT NULL;
CREATE INDEX episodes_version ON episodes (version, split);
CREATE INDEX turn_rewards_completion ON turn_rewards (completion_id);
CREATE INDEX run_episodes_episode ON run_episodes (episode);
CREATE INDEX signals_next ON signals (next_id);
CREATE INDEX signals_waiting ON signals (seq) WHERE state = 'waiting';
CREATE INDEX signals_labelled ON signals (judge, config, labelled_at) WHERE state = 'labelled';
CREATE INDEX completion_lessons_rating ON completion_lessons (rating_id);
CREATE INDEX judged_pairs_better ON judged_pairs (better);
CREATE INDEX judged_pairs_worse ON judged_pairs (worse);
CREATE INDEX judged_pairs_of ON judged_pairs (judge, config, seq);
CREATE INDEX judged_pairs_better_rating ON judged_pairs (better_rating) WHERE better_rating IS NOT NULL;
CREATE INDEX judged_pairs_worse_rating ON judged_pairs (worse_rating) WHERE worse_rating IS NOT NULL;
CREATE INDEX signals_rating ON signals (rating_id) WHERE rating_id IS NOT NULL;
CREATE TRIGGER episodes_taken_by_a_run AFTER INSERT ON run_episodes
BEGIN
    UPDATE episodes SET taken = 1 WHERE seq = NEW.episode;
END;
CREATE TRIGGER episodes_given_back_by_a_run AFTER UPDATE OF status ON runs
WHEN OLD.status IN ('claimed', 'running', 'done') AND NEW.status NOT IN ('claimed', 'running', 'done')
BEGIN
    UPDATE episodes SET taken = 0 WHERE seq IN (SELECT t.episode FROM run_episodes t WHERE t.run_id = NEW.id);
END;
CREATE INDEX episodes_waiting ON episodes (ended_at)
WHERE left_out IS NULL AND taken = 0 AND ended_at IS NOT NULL AND split = 'train';
CREATE INDEX episodes_open ON episodes (key) WHERE ended_at IS NULL AND left_out IS NULL;
CREATE INDEX episodes_left_out ON episodes (left_out) WHERE left_out IS NOT NULL;
CREATE INDEX messages_parent ON messages (parent);
CREATE UNIQUE INDEX signals_once ON signals (completion_id, kind, coalesce(next_id, ''), orphan);
CREATE TRIGGER signals_lose_their_words BEFORE DELETE ON completions
BEGIN
    UPDATE signals SET said = '', hint = NULL, orphan = seq, state = iif(state = 'waiting', 'dropped', state),
        why = iif(state = 'waiting', 'what was said is not kept any more', why)
    WHERE next_id = OLD.id;
END;
PRAGMA writable_schema=OFF;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('completions',1);
INSERT INTO "sqlite_sequence" VALUES('ratings',1);
INSERT INTO "sqlite_sequence" VALUES('audit',2);
COMMIT;
PRAGMA user_version = 30;
