-- Everything of a home. `store.schema` runs this file on a new database, and later ones on what an earlier rlproxy left.

-- What was asked and answered

-- One node of the conversation tree: its hash covers its parent, so a prompt sent again is the same nodes. Rows lie in
-- the order in which they came, and their hashes in an index of their own: a table by hash had each row in another place,
-- which was two thirds of the pages that one answer had to write.
CREATE TABLE messages (
    hash   BLOB NOT NULL UNIQUE,
    parent BLOB REFERENCES messages (hash),
    role   TEXT NOT NULL,
    body   BLOB NOT NULL,  -- JSON without its role; where `cut`, without its blobs
    cut    INTEGER NOT NULL DEFAULT 0
) STRICT;
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
    prompt_token_ids BLOB,  -- int32; of a long prompt what is left over behind the last block
    token_ids        BLOB,  -- int32
    logprobs         BLOB,  -- float32
    thread           BLOB,  -- the conversation up to and with the reply, by what no client changes when it sends it back
    translated       INTEGER NOT NULL DEFAULT 0,  -- asked for as chat completions, said again in the client's dialect
    untrainable      TEXT,  -- in one word (has_image, raw, …): the prompt in the tree is not all that the model saw
    asked            TEXT NOT NULL DEFAULT '',  -- what the person said last, for lists and the search
    redacted         TEXT,  -- what was replaced before this was stored, as a JSON list: place and kind (prompt:api_key)
    conversation     INTEGER,  -- the seq of its first turn; NULL: this is the first turn itself
    prompt_block     BLOB REFERENCES prompt_blocks (hash),  -- the last one
    request_hash     BLOB REFERENCES requests (hash),  -- `request` is empty then
    -- The key that asked: the id of one that was handed out, or a word for those of the settings (proxy.keys). A name in
    -- a request proves nothing, so who may read a completion, go on from it or delete it hangs on this.
    key              TEXT,
    forms            TEXT,  -- how the prompt's messages were written, as JSON: white space, parts, reasoning of a turn
    above            BLOB,  -- the loose name of its conversation up to the newest reply in the prompt; NULL: none
    typed            TEXT,  -- all that a person typed in the newest message, where that is certain: a hint is part of it
    tool_errors      TEXT,  -- which tool results of the newest turn the client marked as errors: ids of calls, as JSON
    pieces           BLOB,  -- the bytes of each token, one for each log-prob, where a server gives no ids
    logprobs_of      TEXT   -- `model` (before sampling), `temperature` (after it); NULL: the sampling distribution
) STRICT;
-- Every index ends in seq by itself, so each of these also gives its rows newest first.
CREATE INDEX completions_status ON completions (status, turn);
CREATE INDEX completions_session ON completions (session) WHERE session IS NOT NULL;
CREATE INDEX completions_user ON completions (user) WHERE user IS NOT NULL;
CREATE INDEX completions_version ON completions (version);
CREATE INDEX completions_created ON completions (created_at);
CREATE INDEX completions_prompt ON completions (prompt_hash);
CREATE INDEX completions_reply ON completions (reply_hash);
CREATE INDEX completions_thread ON completions (thread);
CREATE INDEX completions_prompt_block ON completions (prompt_block) WHERE prompt_block IS NOT NULL;
CREATE INDEX completions_request ON completions (request_hash) WHERE request_hash IS NOT NULL;
CREATE INDEX completions_key ON completions (key, user);

-- Agents change their system texts with every turn (dates, git status). In the tree they would make each turn a
-- new conversation, stored whole again; so they hang on the completion, and the tree has what was said.
CREATE TABLE completion_system (
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,  -- its place in the prompt
    hash          BLOB NOT NULL REFERENCES messages (hash),
    PRIMARY KEY (completion_id, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX completion_system_hash ON completion_system (hash);

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

-- An agent sends its whole conversation with every turn, and an exact backend says the ids of all its tokens every time.
-- Whole blocks of them are here once: a block's hash covers that of the block before it, so the last one names them all.
CREATE TABLE prompt_blocks (
    hash   BLOB PRIMARY KEY,
    parent BLOB REFERENCES prompt_blocks (hash),
    ids    BLOB NOT NULL  -- int32
) STRICT;
CREATE INDEX prompt_blocks_parent ON prompt_blocks (parent);

-- And the same tools with every turn: what a request says beside its messages is here once, where that is much.
CREATE TABLE requests (
    hash BLOB PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;
CREATE TRIGGER requests_go_with_their_last_completion AFTER DELETE ON completions
WHEN OLD.request_hash IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.request_hash = OLD.request_hash)
BEGIN
    DELETE FROM requests WHERE hash = OLD.request_hash;
END;

-- The ids that a backend gave to the items of an answer: a client may name one in place of sending it again. They are
-- not unique: some servers count from one after each start.
CREATE TABLE items (
    id            TEXT NOT NULL,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,  -- its place in the answer
    kind          TEXT NOT NULL,     -- message, function_call, reasoning, …
    PRIMARY KEY (id, completion_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX items_completion ON items (completion_id);

-- What people and programs think of it

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
    replaced        TEXT,
    -- What kind of judgement a value stands for: a thumb and five stars are both 1.
    scale           TEXT NOT NULL DEFAULT 'unit' CHECK (scale IN ('thumb', 'stars', 'unit')),
    repeats         TEXT,  -- the rater's last rating that a run took, where this says the same: each trains once
    -- Whether a person gave it. 0: a program's reward or a judge's label: no gate, monitor, list or share counts it.
    human           INTEGER NOT NULL DEFAULT 1 CHECK (human IN (0, 1)),
    other_key       TEXT  -- that rated, where the completion is another key's: a name there may be somebody else's
) STRICT;
CREATE UNIQUE INDEX ratings_one_live ON ratings (completion_id, rater) WHERE live = 1;
-- An event is its rater's: of two people whose events a gateway names alike, each has their own.
CREATE UNIQUE INDEX ratings_event ON ratings (source, source_event_id, rater) WHERE source_event_id IS NOT NULL;
-- The triggers of `listed` count the ratings of a completion with each one that is given: from the index alone.
CREATE INDEX ratings_completion ON ratings (completion_id, live, human, value);
CREATE INDEX ratings_live ON ratings (live);
CREATE INDEX ratings_rater ON ratings (rater, live);
CREATE INDEX ratings_of_programs ON ratings (rater, live) WHERE human = 0;
-- Ratings by day.
CREATE INDEX ratings_days ON ratings (created_at, value) WHERE live = 1 AND human = 1;

CREATE TABLE links (
    platform      TEXT NOT NULL,
    channel       TEXT NOT NULL,
    message_id    TEXT NOT NULL,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    person        TEXT,  -- whom the message was for, by their id on the platform
    created_at    REAL NOT NULL DEFAULT 0,  -- `/rl good` means the newest
    key           TEXT,  -- that made the link: no other may lead that message to another completion
    PRIMARY KEY (platform, channel, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX links_completion ON links (completion_id);
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

-- What happened after a completion, and what a rule or a judge says it means. A signal is not a rating.
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
    rating_id     TEXT,  -- that the label became last
    -- Its own `seq`, once the request in which it was seen is deleted: two signals of one answer may both lose theirs.
    orphan        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX signals_once ON signals (completion_id, kind, coalesce(next_id, ''), orphan);
CREATE INDEX signals_next ON signals (next_id);
CREATE INDEX signals_waiting ON signals (seq) WHERE state = 'waiting';
CREATE INDEX signals_labelled ON signals (judge, config, labelled_at) WHERE state = 'labelled';
CREATE INDEX signals_rating ON signals (rating_id) WHERE rating_id IS NOT NULL;
-- The words were in the next request: they go with it. What was learned of them, a label, stays with the answer.
CREATE TRIGGER signals_lose_their_words BEFORE DELETE ON completions
BEGIN
    UPDATE signals SET said = '', hint = NULL, orphan = seq, state = iif(state = 'waiting', 'dropped', state),
        why = iif(state = 'waiting', 'what was said is not kept any more', why)
    WHERE next_id = OLD.id;
END;

-- Two answers to one question that a judge has ranked, the same way in both of two orders. A pair is not a rating.
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
CREATE INDEX judged_pairs_better ON judged_pairs (better);
CREATE INDEX judged_pairs_worse ON judged_pairs (worse);
CREATE INDEX judged_pairs_of ON judged_pairs (judge, config, seq);
CREATE INDEX judged_pairs_better_rating ON judged_pairs (better_rating) WHERE better_rating IS NOT NULL;
CREATE INDEX judged_pairs_worse_rating ON judged_pairs (worse_rating) WHERE worse_rating IS NOT NULL;

-- What a person has said of a lesson: a comment on a disliked answer that acts at once (`lessons.enabled`). A lesson is
-- the live rating itself; a row is here only where something was said of it. `text`: the person's own new words.
CREATE TABLE lessons (
    rating_id  TEXT PRIMARY KEY REFERENCES ratings (id) ON DELETE CASCADE,
    text       TEXT,
    always     INTEGER NOT NULL DEFAULT 0 CHECK (always IN (0, 1)),  -- whatever is asked
    ended      TEXT CHECK (ended IN ('removed', 'retired')),
    why        TEXT,
    changed_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Which lessons were in a completion's prompt, in their order, word for word; `left_out`: which would have been, but for
-- the comparison with a version that has learned them.
CREATE TABLE completion_lessons (
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            INTEGER NOT NULL,
    rating_id     TEXT NOT NULL,
    text          TEXT NOT NULL,
    left_out      INTEGER NOT NULL CHECK (left_out IN (0, 1)),
    PRIMARY KEY (completion_id, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX completion_lessons_rating ON completion_lessons (rating_id);

-- What the newest trusted critic expects of answers that nobody has rated: log-odds that people like them. It goes with
-- the ratings that the critic was made of.
CREATE TABLE guesses (
    completion_id TEXT PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    odds          REAL NOT NULL,
    run_id        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What trained on it, and what is live

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
    manifest   TEXT NOT NULL,
    withdrawn  TEXT  -- why rlproxy rolled this version back; such a one goes live again only by a person's word
) STRICT;

CREATE TABLE pointer (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    live       INTEGER NOT NULL,
    previous   INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    reason     TEXT NOT NULL,
    actor      TEXT NOT NULL DEFAULT ''  -- who made it live: a person's choice is never rolled back by rlproxy itself
) STRICT;
INSERT INTO pointer VALUES (1, 0, 0, 0, 'the base model', '');

-- An episode is an agent's attempt at one task: all completions of one session, asked for by one key.
CREATE TABLE episodes (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL,  -- the session's name
    key         TEXT NOT NULL,  -- of its completions
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
    left_out    TEXT,  -- why it never trains
    taken       INTEGER NOT NULL DEFAULT 0,  -- 1: a run that is open, or made a version, has it
    scored_by   TEXT,  -- the sha256 of the user's own code that has looked at it; it may have given a reward or none
    UNIQUE (id, key)
) STRICT;
CREATE INDEX episodes_team ON episodes (team) WHERE team IS NOT NULL;
CREATE INDEX episodes_version ON episodes (version, split);
-- Which episodes still wait for a run, so that nobody looks through all that have ever trained.
CREATE INDEX episodes_waiting ON episodes (ended_at)
WHERE left_out IS NULL AND taken = 0 AND ended_at IS NOT NULL AND split = 'train';
CREATE INDEX episodes_open ON episodes (key) WHERE ended_at IS NULL AND left_out IS NULL;
CREATE INDEX episodes_left_out ON episodes (left_out) WHERE left_out IS NOT NULL;

-- What single turns of it were worth, where the program says so.
CREATE TABLE turn_rewards (
    episode       INTEGER NOT NULL REFERENCES episodes (seq) ON DELETE CASCADE,
    completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    value         REAL NOT NULL CHECK (value BETWEEN -1 AND 1),
    at            REAL NOT NULL,
    PRIMARY KEY (episode, completion_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX turn_rewards_completion ON turn_rewards (completion_id);

-- Which run trained on which, as `run_samples` has it for ratings.
CREATE TABLE run_episodes (
    run_id  INTEGER NOT NULL REFERENCES runs (id),
    episode INTEGER NOT NULL REFERENCES episodes (seq) ON DELETE CASCADE,
    PRIMARY KEY (run_id, episode)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_episodes_episode ON run_episodes (episode);
CREATE TRIGGER episodes_taken_by_a_run AFTER INSERT ON run_episodes
BEGIN
    UPDATE episodes SET taken = 1 WHERE seq = NEW.episode;
END;
CREATE TRIGGER episodes_given_back_by_a_run AFTER UPDATE OF status ON runs
WHEN OLD.status IN ('claimed', 'running', 'done') AND NEW.status NOT IN ('claimed', 'running', 'done')
BEGIN
    UPDATE episodes SET taken = 0 WHERE seq IN (SELECT t.episode FROM run_episodes t WHERE t.run_id = NEW.id);
END;

-- Lists and the search

-- Each completion that ended, with what lists are filtered by: rows so narrow that reading thousands of them takes
-- milliseconds, whatever the filters. Triggers keep it; `opinion` is the sum of people's live ratings.
CREATE TABLE listed (
    seq          INTEGER PRIMARY KEY REFERENCES completions (seq) ON DELETE CASCADE,
    turn         TEXT NOT NULL,
    model        TEXT NOT NULL,
    version      INTEGER,
    session      TEXT,
    rated        INTEGER NOT NULL DEFAULT 0,
    opinion      REAL NOT NULL DEFAULT 0,
    searched     INTEGER NOT NULL DEFAULT 0,  -- whether its words are in the search
    conversation INTEGER NOT NULL DEFAULT 0   -- the seq of its first turn, always
) STRICT;
CREATE INDEX listed_session ON listed (session) WHERE session IS NOT NULL;
CREATE INDEX listed_model ON listed (model);
CREATE INDEX listed_version ON listed (version);
CREATE INDEX listed_conversation ON listed (conversation);
CREATE INDEX listed_unrated ON listed (seq) WHERE rated = 0;
CREATE INDEX listed_opinions ON listed (version, turn, opinion) WHERE rated > 0;
CREATE INDEX listed_unsearched ON listed (seq) WHERE searched = 0;
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

-- The words of completions and what was asked. Only the index: the texts are above. It is filled behind the capture
-- (`listed.searched`), so that no answer waits for it.
-- Beginnings of three and four letters have an index of their own: longer ones are those of few words.
CREATE VIRTUAL TABLE search USING fts5(
    asked, text, content = '', tokenize = 'unicode61 remove_diacritics 2', prefix = '3 4');
CREATE TRIGGER search_forgets BEFORE DELETE ON completions
WHEN (SELECT l.searched FROM listed l WHERE l.seq = OLD.seq) = 1
BEGIN
    INSERT INTO search (search, rowid, asked, text)
    VALUES ('delete', OLD.seq, OLD.asked, substr(OLD.text, 1, 4000));
END;

-- Who may do what, and what was done

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

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
-- After which completion signals, ends of streams, and groups of answers are looked at.
INSERT INTO meta VALUES ('signals_after', '0'), ('signals_ended', '0'), ('ranked_after', '0');

-- Each line has a hash over itself and the hash before it (`store.learning.meta`): none can be changed or left out unseen.
CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    actor  TEXT NOT NULL,
    act    TEXT NOT NULL,
    detail TEXT NOT NULL,
    hash   BLOB
) STRICT;
CREATE TRIGGER audit_lines_stay_as_they_are BEFORE UPDATE ON audit WHEN OLD.hash IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_lines_stay BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
