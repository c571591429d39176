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
CREATE INDEX signals_rating ON signals (rating_id) WHERE rating_id IS NOT NULL;
-- Groups that were there before are not ranked.
INSERT INTO meta SELECT 'ranked_after', CAST(coalesce(max(seq), 0) AS TEXT) FROM completions;
