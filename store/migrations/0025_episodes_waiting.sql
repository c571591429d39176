-- Which episodes still wait for a run stands in each, so that nobody looks through all that have ever trained.
ALTER TABLE episodes ADD COLUMN taken INTEGER NOT NULL DEFAULT 0;  -- 1: a run that is open, or made a version, has it
UPDATE episodes SET taken = 1 WHERE seq IN (
    SELECT t.episode FROM run_episodes t JOIN runs u ON u.id = t.run_id WHERE u.status IN ('claimed', 'running', 'done')
);

CREATE TRIGGER episodes_taken_by_a_run AFTER INSERT ON run_episodes
BEGIN
    UPDATE episodes SET taken = 1 WHERE seq = NEW.episode;
END;
CREATE TRIGGER episodes_given_back_by_a_run AFTER UPDATE OF status ON runs
WHEN OLD.status IN ('claimed', 'running', 'done') AND NEW.status NOT IN ('claimed', 'running', 'done')
BEGIN
    UPDATE episodes SET taken = 0 WHERE seq IN (SELECT t.episode FROM run_episodes t WHERE t.run_id = NEW.id);
END;

DROP INDEX episodes_waiting;
CREATE INDEX episodes_waiting ON episodes (ended_at)
WHERE left_out IS NULL AND taken = 0 AND ended_at IS NOT NULL AND split = 'train';
CREATE INDEX episodes_open ON episodes (key) WHERE ended_at IS NULL AND left_out IS NULL;
CREATE INDEX episodes_left_out ON episodes (left_out) WHERE left_out IS NOT NULL;
