-- What the newest trusted critic expects of answers that nobody has rated: log-odds that people like them. It goes with
-- the ratings that the critic was made of.
CREATE TABLE guesses (
    completion_id TEXT PRIMARY KEY REFERENCES completions (id) ON DELETE CASCADE,
    odds          REAL NOT NULL,
    run_id        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
