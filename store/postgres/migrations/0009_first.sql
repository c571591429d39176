-- Everything of a home, as the SQLite migrations 1 to 9 leave it. Comments on the columns stand there.
--
-- Two things differ. Texts that a client chooses have a hash index, or their hash in one: a B-tree refuses a value of
-- more than 2.7 kB. And numbers come from `counters`, which a transaction that fails gives back: the audit log may have
-- no gap, and the order of `seq` is the order of the commits.

CREATE TABLE counters (
    name text COLLATE "C" PRIMARY KEY,
    seq  bigint NOT NULL
);
INSERT INTO counters VALUES ('completions', 0), ('ratings', 0), ('signals', 0), ('judged_pairs', 0), ('episodes', 0),
    ('audit', 0), ('runs', 0), ('experiments', 0);

CREATE FUNCTION next_number(of_table text) RETURNS bigint LANGUAGE sql AS $$
    UPDATE counters SET seq = seq + 1 WHERE name = of_table RETURNING seq
$$;

CREATE TABLE requests (
    hash bytea PRIMARY KEY,
    body bytea NOT NULL
);

CREATE TABLE prompt_blocks (
    hash   bytea PRIMARY KEY,
    parent bytea REFERENCES prompt_blocks (hash),
    ids    bytea NOT NULL
);
CREATE INDEX prompt_blocks_parent ON prompt_blocks (parent);

CREATE TABLE blobs (
    hash bytea PRIMARY KEY,
    data bytea NOT NULL
);

CREATE TABLE messages (
    hash   bytea NOT NULL UNIQUE,
    parent bytea REFERENCES messages (hash),
    role   text COLLATE "C" NOT NULL,
    body   bytea NOT NULL,
    cut    bigint NOT NULL DEFAULT 0
);
CREATE INDEX messages_parent ON messages (parent);

CREATE TABLE completions (
    seq              bigint PRIMARY KEY DEFAULT next_number('completions'),
    id               text COLLATE "C" NOT NULL UNIQUE,
    request_id       text COLLATE "C" NOT NULL,
    choice           bigint NOT NULL,
    created_at       double precision NOT NULL,
    dialect          text COLLATE "C" NOT NULL,
    backend          text COLLATE "C" NOT NULL,
    model            text COLLATE "C" NOT NULL,
    served_model     text COLLATE "C" NOT NULL,
    version          bigint,
    session          text COLLATE "C",
    "user"           text COLLATE "C",
    turn             text COLLATE "C" NOT NULL CHECK (turn IN ('main', 'side')),
    turn_rule        text COLLATE "C" NOT NULL,
    streamed         bigint NOT NULL,
    sampling         text COLLATE "C" NOT NULL,
    request          bytea NOT NULL,
    prompt_hash      bytea REFERENCES messages (hash),
    status           text COLLATE "C" NOT NULL CHECK (status IN ('pending', 'done', 'partial', 'error')),
    finished_at      double precision,
    reply_hash       bytea REFERENCES messages (hash),
    text             text COLLATE "C" NOT NULL DEFAULT '',
    finish_reason    text COLLATE "C",
    usage            text COLLATE "C",
    exact            bigint NOT NULL DEFAULT 0,
    inexact_reason   text COLLATE "C",
    error            text COLLATE "C",
    prompt_token_ids bytea,
    token_ids        bytea,
    logprobs         bytea,
    thread           bytea,
    translated       bigint NOT NULL DEFAULT 0,
    untrainable      text COLLATE "C",
    asked            text COLLATE "C" NOT NULL DEFAULT '',
    redacted         text COLLATE "C",
    conversation     bigint,
    prompt_block     bytea REFERENCES prompt_blocks (hash),
    request_hash     bytea REFERENCES requests (hash),
    key              text COLLATE "C",
    forms            text COLLATE "C",
    above            bytea,
    typed            text COLLATE "C",
    tool_errors      text COLLATE "C",
    pieces           bytea,
    logprobs_of      text COLLATE "C",
    unconstrained_logprobs bytea,
    images           bigint NOT NULL DEFAULT 0
);
CREATE INDEX completions_status ON completions (status, turn);
CREATE INDEX completions_session ON completions USING hash (session);
CREATE INDEX completions_user ON completions USING hash ("user");
CREATE INDEX completions_version ON completions (version);
CREATE INDEX completions_created ON completions (created_at);
CREATE INDEX completions_prompt ON completions (prompt_hash);
CREATE INDEX completions_reply ON completions (reply_hash);
CREATE INDEX completions_thread ON completions (thread);
CREATE INDEX completions_prompt_block ON completions (prompt_block) WHERE prompt_block IS NOT NULL;
CREATE INDEX completions_request ON completions (request_hash) WHERE request_hash IS NOT NULL;
CREATE INDEX completions_key ON completions (key, seq);

CREATE TABLE completion_system (
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            bigint NOT NULL,
    hash          bytea NOT NULL REFERENCES messages (hash),
    PRIMARY KEY (completion_id, at)
);
CREATE INDEX completion_system_hash ON completion_system (hash);

CREATE TABLE message_blobs (
    message bytea NOT NULL REFERENCES messages (hash) ON DELETE CASCADE,
    at      bigint NOT NULL,
    blob    bytea NOT NULL REFERENCES blobs (hash),
    coded   bigint NOT NULL,
    PRIMARY KEY (message, at)
);
CREATE INDEX message_blobs_blob ON message_blobs (blob);

CREATE TABLE items (
    id            text COLLATE "C" NOT NULL,
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            bigint NOT NULL,
    kind          text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX items_once ON items (md5(id), completion_id);
CREATE INDEX items_id ON items USING hash (id);
CREATE INDEX items_completion ON items (completion_id);

CREATE TABLE ratings (
    seq             bigint PRIMARY KEY DEFAULT next_number('ratings'),
    id              text COLLATE "C" NOT NULL UNIQUE,
    completion_id   text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    rater           text COLLATE "C" NOT NULL,
    value           double precision NOT NULL CHECK (value BETWEEN -1 AND 1),
    comment         text COLLATE "C",
    correction      text COLLATE "C",
    weight          double precision NOT NULL CHECK (weight > 0),
    source          text COLLATE "C" NOT NULL,
    source_event_id text COLLATE "C",
    created_at      double precision NOT NULL,
    live            bigint NOT NULL,
    retracted_at    double precision,
    replaced        text COLLATE "C",
    scale           text COLLATE "C" NOT NULL DEFAULT 'unit' CHECK (scale IN ('thumb', 'stars', 'unit')),
    repeats         text COLLATE "C",
    human           bigint NOT NULL DEFAULT 1 CHECK (human IN (0, 1)),
    other_key       text COLLATE "C",
    counterpart     double precision
);
CREATE UNIQUE INDEX ratings_one_live ON ratings (completion_id, md5(rater)) WHERE live = 1;
CREATE UNIQUE INDEX ratings_event ON ratings (source, md5(source_event_id), md5(rater)) WHERE source_event_id IS NOT NULL;
CREATE INDEX ratings_completion ON ratings (completion_id, live, human, value);
CREATE INDEX ratings_live ON ratings (live);
CREATE INDEX ratings_rater ON ratings USING hash (rater);
CREATE INDEX ratings_of_events ON ratings USING hash (source_event_id)
WHERE source_event_id IS NOT NULL;
CREATE INDEX ratings_days ON ratings (created_at, value) WHERE live = 1 AND human = 1;

CREATE TABLE links (
    platform      text COLLATE "C" NOT NULL,
    channel       text COLLATE "C" NOT NULL,
    message_id    text COLLATE "C" NOT NULL,
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    person        text COLLATE "C",
    created_at    double precision NOT NULL DEFAULT 0,
    key           text COLLATE "C",
    PRIMARY KEY (platform, channel, message_id)
);
CREATE INDEX links_completion ON links (completion_id);
CREATE INDEX links_newest ON links (platform, channel, created_at);

CREATE TABLE reactions (
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    rater         text COLLATE "C" NOT NULL,
    platform      text COLLATE "C" NOT NULL,
    message       text COLLATE "C" NOT NULL,
    emoji         text COLLATE "C" NOT NULL,
    value         double precision,
    scale         text COLLATE "C" NOT NULL,
    at            double precision NOT NULL,
    rating_id     text COLLATE "C",
    event_id      text COLLATE "C",
    PRIMARY KEY (completion_id, rater, platform, message, emoji)
);
CREATE INDEX reactions_event ON reactions (platform, event_id);

CREATE TABLE webhook_events (
    platform text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    at       double precision NOT NULL,
    PRIMARY KEY (platform, event_id)
);
CREATE INDEX webhook_events_at ON webhook_events (at);

CREATE TABLE signals (
    seq           bigint PRIMARY KEY DEFAULT next_number('signals'),
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    kind          text COLLATE "C" NOT NULL CHECK (kind IN ('message', 'tool', 'regenerated', 'edited', 'aborted', 'copied', 'own')),
    next_id       text COLLATE "C" REFERENCES completions (id) ON DELETE SET NULL,
    said          text COLLATE "C" NOT NULL,
    created_at    double precision NOT NULL,
    state         text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'labelled', 'dropped')),
    label         text COLLATE "C",
    value         double precision NOT NULL DEFAULT 0 CHECK (value BETWEEN -1 AND 1),
    judge         text COLLATE "C",
    config        text COLLATE "C",
    hint          text COLLATE "C",
    why           text COLLATE "C",
    labelled_at   double precision,
    tokens        bigint NOT NULL DEFAULT 0,
    rating_id     text COLLATE "C",
    orphan        bigint NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX signals_once ON signals (completion_id, kind, coalesce(next_id, ''), orphan);
CREATE INDEX signals_next ON signals (next_id);
CREATE INDEX signals_waiting ON signals (seq) WHERE state = 'waiting';
CREATE INDEX signals_labelled ON signals (judge, config, labelled_at) WHERE state = 'labelled';
CREATE INDEX signals_rating ON signals (rating_id) WHERE rating_id IS NOT NULL;

CREATE TABLE judged_pairs (
    seq           bigint PRIMARY KEY DEFAULT next_number('judged_pairs'),
    better        text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    worse         text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    judge         text COLLATE "C" NOT NULL,
    config        text COLLATE "C" NOT NULL,
    created_at    double precision NOT NULL,
    better_rating text COLLATE "C",
    worse_rating  text COLLATE "C"
);
CREATE INDEX judged_pairs_better ON judged_pairs (better);
CREATE INDEX judged_pairs_worse ON judged_pairs (worse);
CREATE INDEX judged_pairs_of ON judged_pairs (judge, config, seq);
CREATE INDEX judged_pairs_better_rating ON judged_pairs (better_rating) WHERE better_rating IS NOT NULL;
CREATE INDEX judged_pairs_worse_rating ON judged_pairs (worse_rating) WHERE worse_rating IS NOT NULL;

CREATE TABLE completion_lessons (
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    at            bigint NOT NULL,
    rating_id     text COLLATE "C" NOT NULL,
    text          text COLLATE "C" NOT NULL,
    left_out      bigint NOT NULL CHECK (left_out IN (0, 1)),
    PRIMARY KEY (completion_id, at)
);
CREATE INDEX completion_lessons_rating ON completion_lessons (rating_id);

CREATE TABLE guesses (
    completion_id text COLLATE "C" PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    odds          double precision NOT NULL,
    run_id        bigint NOT NULL
);

CREATE TABLE runs (
    id         bigint PRIMARY KEY DEFAULT next_number('runs'),
    status     text COLLATE "C" NOT NULL CHECK (status IN ('claimed', 'running', 'done', 'rejected', 'empty', 'failed', 'cancelled')),
    model      text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    parent     bigint NOT NULL,
    folder     text COLLATE "C" NOT NULL,
    attempts   bigint NOT NULL DEFAULT 0,
    created_at double precision NOT NULL,
    started_at double precision,
    ended_at   double precision,
    reason     text COLLATE "C",
    samples    bigint NOT NULL,
    held       bigint NOT NULL,
    result     text COLLATE "C",
    retrains   bigint NOT NULL DEFAULT 0 CHECK (retrains IN (0, 1))
);
CREATE INDEX runs_status ON runs (status);

CREATE TABLE run_samples (
    run_id    bigint NOT NULL REFERENCES runs (id),
    rating_id text COLLATE "C" NOT NULL REFERENCES ratings (id) ON DELETE CASCADE,
    split     text COLLATE "C" NOT NULL CHECK (split IN ('train', 'held')),
    PRIMARY KEY (run_id, rating_id)
);
CREATE INDEX run_samples_rating ON run_samples (rating_id);

CREATE TABLE adapters (
    version    bigint PRIMARY KEY,
    parent     bigint NOT NULL,
    run_id     bigint REFERENCES runs (id),
    model      text COLLATE "C" NOT NULL,
    path       text COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    manifest   text COLLATE "C" NOT NULL,
    withdrawn  text COLLATE "C"
);

CREATE TABLE pointer (
    one        bigint PRIMARY KEY CHECK (one = 1),
    live       bigint NOT NULL,
    previous   bigint NOT NULL,
    changed_at double precision NOT NULL,
    reason     text COLLATE "C" NOT NULL,
    actor      text COLLATE "C" NOT NULL DEFAULT ''
);

CREATE TABLE episodes (
    seq         bigint PRIMARY KEY DEFAULT next_number('episodes'),
    id          text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    posted      bigint NOT NULL,
    task        text COLLATE "C",
    team        text COLLATE "C",
    team_size   bigint,
    split       text COLLATE "C" NOT NULL CHECK (split IN ('train', 'eval')),
    meta        text COLLATE "C",
    version     bigint,
    opened_at   double precision NOT NULL,
    reward      double precision CHECK (reward BETWEEN -1 AND 1),
    comment     text COLLATE "C",
    error       text COLLATE "C",
    rewarded_at double precision,
    ended_at    double precision,
    left_out    text COLLATE "C",
    taken       bigint NOT NULL DEFAULT 0,
    scored_by   text COLLATE "C"
);
CREATE UNIQUE INDEX episodes_once ON episodes (md5(id), key);
CREATE INDEX episodes_id ON episodes USING hash (id);
CREATE INDEX episodes_team ON episodes USING hash (team);
CREATE INDEX episodes_version ON episodes (version, split);
CREATE INDEX episodes_waiting ON episodes (ended_at)
WHERE left_out IS NULL AND taken = 0 AND ended_at IS NOT NULL AND split = 'train';
CREATE INDEX episodes_open ON episodes (key) WHERE ended_at IS NULL AND left_out IS NULL;
CREATE INDEX episodes_left_out ON episodes (left_out) WHERE left_out IS NOT NULL;

CREATE TABLE turn_rewards (
    episode       bigint NOT NULL REFERENCES episodes (seq) ON DELETE CASCADE,
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    value         double precision NOT NULL CHECK (value BETWEEN -1 AND 1),
    at            double precision NOT NULL,
    PRIMARY KEY (episode, completion_id)
);
CREATE INDEX turn_rewards_completion ON turn_rewards (completion_id);

CREATE TABLE run_episodes (
    run_id  bigint NOT NULL REFERENCES runs (id),
    episode bigint NOT NULL REFERENCES episodes (seq) ON DELETE CASCADE,
    PRIMARY KEY (run_id, episode)
);
CREATE INDEX run_episodes_episode ON run_episodes (episode);

CREATE TABLE listed (
    seq          bigint PRIMARY KEY REFERENCES completions (seq) ON DELETE CASCADE,
    turn         text COLLATE "C" NOT NULL,
    model        text COLLATE "C" NOT NULL,
    version      bigint,
    session      text COLLATE "C",
    rated        bigint NOT NULL DEFAULT 0,
    opinion      double precision NOT NULL DEFAULT 0,
    searched     bigint NOT NULL DEFAULT 0,
    conversation bigint NOT NULL DEFAULT 0
);
CREATE INDEX listed_session ON listed USING hash (session);
CREATE INDEX listed_model ON listed (model);
CREATE INDEX listed_version ON listed (version);
CREATE INDEX listed_conversation ON listed (conversation);
CREATE INDEX listed_unrated ON listed (seq) WHERE rated = 0;
CREATE INDEX listed_opinions ON listed (version, turn, opinion) WHERE rated > 0;
CREATE INDEX listed_unsearched ON listed (seq) WHERE searched = 0;

CREATE TABLE keys (
    id         text COLLATE "C" PRIMARY KEY,
    name       text COLLATE "C" NOT NULL,
    role       text COLLATE "C" NOT NULL CHECK (role IN ('use', 'rate', 'admin')),
    hash       bytea NOT NULL,
    created_at double precision NOT NULL,
    last_used  double precision,
    revoked_at double precision
);
CREATE UNIQUE INDEX keys_name ON keys (name) WHERE revoked_at IS NULL;

CREATE TABLE meta (
    key   text COLLATE "C" PRIMARY KEY,
    value text COLLATE "C" NOT NULL
);

CREATE TABLE audit (
    seq    bigint PRIMARY KEY DEFAULT next_number('audit'),
    at     double precision NOT NULL,
    actor  text COLLATE "C" NOT NULL,
    act    text COLLATE "C" NOT NULL,
    detail text COLLATE "C" NOT NULL,
    hash   bytea
);

CREATE TABLE experiments (
    id         bigint PRIMARY KEY DEFAULT next_number('experiments'),
    version    bigint NOT NULL,
    against    bigint NOT NULL,
    share      double precision NOT NULL,
    salt       bytea NOT NULL,
    actor      text COLLATE "C" NOT NULL,
    started_at double precision NOT NULL,
    ended_at   double precision,
    outcome    text COLLATE "C",
    reason     text COLLATE "C",
    figures    text COLLATE "C"
);
CREATE UNIQUE INDEX experiments_one_runs ON experiments ((ended_at IS NULL)) WHERE ended_at IS NULL;

CREATE TABLE experiment_turns (
    completion_id text COLLATE "C" PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    experiment    bigint NOT NULL REFERENCES experiments (id),
    conversation  bytea NOT NULL,
    is_candidate  bigint NOT NULL
);
CREATE INDEX experiment_turns_of ON experiment_turns (experiment, conversation, is_candidate);

CREATE TABLE flags (
    completion_id text COLLATE "C" PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    reason        text COLLATE "C" NOT NULL,
    code          text COLLATE "C" NOT NULL,
    flagged_at    double precision NOT NULL
);

CREATE TABLE images (
    blob      bytea PRIMARY KEY REFERENCES blobs (hash) ON DELETE CASCADE,
    coded     bigint NOT NULL,
    state     text COLLATE "C" NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'decoded', 'refused')),
    sha256    bytea,
    size      bigint,
    format    text COLLATE "C",
    width     bigint,
    height    bigint,
    thumbnail bytea,
    reason    text COLLATE "C"
);
CREATE INDEX images_waiting ON images (blob) WHERE state = 'waiting';
CREATE INDEX images_sha256 ON images (sha256) WHERE sha256 IS NOT NULL;

CREATE TABLE lessons (
    rating_id  text COLLATE "C" PRIMARY KEY REFERENCES ratings (id) ON DELETE CASCADE,
    text       text COLLATE "C",
    always     bigint NOT NULL DEFAULT 0 CHECK (always IN (0, 1)),
    ended      text COLLATE "C" CHECK (ended IN ('removed', 'retired')),
    why        text COLLATE "C",
    changed_at double precision NOT NULL
);

CREATE TABLE answer_pairs (
    version       bigint NOT NULL REFERENCES adapters (version),
    position      bigint NOT NULL,
    completion_id text COLLATE "C" NOT NULL REFERENCES completions (id) ON DELETE CASCADE,
    parent_answer text COLLATE "C" NOT NULL,
    answer        text COLLATE "C" NOT NULL,
    PRIMARY KEY (version, position)
);
CREATE INDEX answer_pairs_completion ON answer_pairs (completion_id);

-- The words of completions and what was asked. The texts are in `completions`: a trigger leaves only the words here.
CREATE TABLE search (
    rowid bigint PRIMARY KEY REFERENCES completions (seq) ON DELETE CASCADE,
    asked text,
    text  text,
    words tsvector NOT NULL
);
CREATE INDEX search_words ON search USING gin (words);

INSERT INTO pointer VALUES (1, 0, 0, 0, 'the base model', '');
INSERT INTO meta VALUES ('signals_after', '0'), ('signals_ended', '0'), ('ranked_after', '0');

-- What SQLite's AUTOINCREMENT does with a number that somebody chose: the next one is above it.

CREATE FUNCTION note_number() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    highest bigint;
BEGIN
    IF TG_TABLE_NAME IN ('runs', 'experiments') THEN
        SELECT max(id) INTO highest FROM inserted;
    ELSE
        SELECT max(seq) INTO highest FROM inserted;
    END IF;
    UPDATE counters SET seq = highest WHERE name = TG_TABLE_NAME AND seq < highest;
    RETURN NULL;
END $$;
CREATE TRIGGER completions_number AFTER INSERT ON completions REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION note_number();
CREATE TRIGGER runs_number AFTER INSERT ON runs REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION note_number();

-- What goes with what

CREATE FUNCTION drop_blob() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM blobs b WHERE b.hash = OLD.blob AND NOT EXISTS (SELECT 1 FROM message_blobs m WHERE m.blob = OLD.blob);
    RETURN NULL;
END $$;
CREATE TRIGGER blobs_go_with_their_last_message AFTER DELETE ON message_blobs
FOR EACH ROW EXECUTE FUNCTION drop_blob();

CREATE FUNCTION drop_request() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM requests q WHERE q.hash = OLD.request_hash
    AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.request_hash = OLD.request_hash);
    RETURN NULL;
END $$;
CREATE TRIGGER requests_go_with_their_last_completion AFTER DELETE ON completions
FOR EACH ROW WHEN (OLD.request_hash IS NOT NULL) EXECUTE FUNCTION drop_request();

CREATE FUNCTION drop_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE signals SET said = '', hint = NULL, orphan = seq,
        state = CASE WHEN state = 'waiting' THEN 'dropped' ELSE state END,
        why = CASE WHEN state = 'waiting' THEN 'what was said is not kept any more' ELSE why END
    WHERE next_id = OLD.id;
    RETURN OLD;
END $$;
CREATE TRIGGER signals_lose_their_words BEFORE DELETE ON completions
FOR EACH ROW EXECUTE FUNCTION drop_words();

CREATE FUNCTION take_episode() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE episodes SET taken = 1 WHERE seq = NEW.episode;
    RETURN NULL;
END $$;
CREATE TRIGGER episodes_taken_by_a_run AFTER INSERT ON run_episodes
FOR EACH ROW EXECUTE FUNCTION take_episode();

CREATE FUNCTION give_episodes_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE episodes SET taken = 0 WHERE seq IN (SELECT t.episode FROM run_episodes t WHERE t.run_id = NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER episodes_given_back_by_a_run AFTER UPDATE OF status ON runs
FOR EACH ROW WHEN (OLD.status IN ('claimed', 'running', 'done') AND NEW.status NOT IN ('claimed', 'running', 'done'))
EXECUTE FUNCTION give_episodes_back();

-- Lists

CREATE FUNCTION list_completion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO listed (seq, turn, model, version, session, conversation, rated, opinion)
    SELECT NEW.seq, NEW.turn, NEW.model, NEW.version, NEW.session, coalesce(NEW.conversation, NEW.seq),
        count(*), coalesce(sum(r.value), 0)
    FROM ratings r WHERE r.completion_id = NEW.id AND r.live = 1 AND r.human = 1;
    RETURN NULL;
END $$;
CREATE TRIGGER listed_when_it_ends AFTER UPDATE OF status ON completions
FOR EACH ROW WHEN (OLD.status = 'pending' AND NEW.status <> 'pending') EXECUTE FUNCTION list_completion();

CREATE FUNCTION list_rating() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rated_id text := CASE WHEN TG_OP = 'DELETE' THEN OLD.completion_id ELSE NEW.completion_id END;
BEGIN
    UPDATE listed SET (rated, opinion) = (
        SELECT count(*), coalesce(sum(r.value), 0) FROM ratings r
        WHERE r.completion_id = rated_id AND r.live = 1 AND r.human = 1)
    WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = rated_id);
    RETURN NULL;
END $$;
CREATE TRIGGER listed_with_a_new_rating AFTER INSERT ON ratings
FOR EACH ROW WHEN (NEW.live = 1) EXECUTE FUNCTION list_rating();
CREATE TRIGGER listed_without_an_old_rating AFTER UPDATE OF live ON ratings
FOR EACH ROW EXECUTE FUNCTION list_rating();
CREATE TRIGGER listed_without_a_forgotten_rating AFTER DELETE ON ratings
FOR EACH ROW WHEN (OLD.live = 1) EXECUTE FUNCTION list_rating();

CREATE FUNCTION keep_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.words := search_vector(NEW.asked || ' ' || NEW.text);
    NEW.asked := NULL;
    NEW.text := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER search_keeps_words BEFORE INSERT ON search
FOR EACH ROW EXECUTE FUNCTION keep_words();

-- The audit log

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END $$;
CREATE TRIGGER audit_lines_stay_as_they_are BEFORE UPDATE ON audit
FOR EACH ROW WHEN (OLD.hash IS NOT NULL) EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_lines_stay BEFORE DELETE ON audit
FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- Relays, and whose the rows are of requests under way: a relay that starts ends its own, and no other's

CREATE TABLE relays (
    id      text COLLATE "C" PRIMARY KEY,
    host    text NOT NULL,
    seen_at double precision NOT NULL
);
CREATE TABLE relay_rows (
    completion_id text COLLATE "C" PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    relay         text COLLATE "C" NOT NULL
);
CREATE INDEX relay_rows_of ON relay_rows (relay);

-- What other relays have to hear of

CREATE FUNCTION tell_relays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('rlproxy', TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER pointer_moves AFTER UPDATE ON pointer FOR EACH STATEMENT EXECUTE FUNCTION tell_relays();
CREATE TRIGGER adapters_change AFTER INSERT OR UPDATE ON adapters FOR EACH STATEMENT EXECUTE FUNCTION tell_relays();
CREATE TRIGGER keys_change AFTER INSERT OR UPDATE OR DELETE ON keys FOR EACH STATEMENT EXECUTE FUNCTION tell_relays();
CREATE TRIGGER ratings_change AFTER INSERT OR UPDATE ON ratings FOR EACH STATEMENT EXECUTE FUNCTION tell_relays();
CREATE TRIGGER episodes_change AFTER UPDATE ON episodes FOR EACH STATEMENT EXECUTE FUNCTION tell_relays();
CREATE TRIGGER experiments_change AFTER INSERT OR UPDATE ON experiments
FOR EACH STATEMENT EXECUTE FUNCTION tell_relays();

CREATE FUNCTION tell_relays_of_value() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('rlproxy', 'meta ' || NEW.key);
    RETURN NULL;
END $$;
CREATE TRIGGER meta_changes AFTER INSERT OR UPDATE ON meta
FOR EACH ROW WHEN (NEW.key NOT LIKE 'signals\_%') EXECUTE FUNCTION tell_relays_of_value();
