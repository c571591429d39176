-- An episode is an agent's attempt at one task: all completions of one session, asked for by one key.
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
    left_out    TEXT,  -- why it never trains
    UNIQUE (id, key)
) STRICT;
CREATE INDEX episodes_team ON episodes (team) WHERE team IS NOT NULL;
CREATE INDEX episodes_waiting ON episodes (ended_at) WHERE left_out IS NULL;
CREATE INDEX episodes_version ON episodes (version, split);

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
