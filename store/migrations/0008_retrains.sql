-- A run of `rlproxy retrain`: it replays ratings on another base. To all other runs its samples are as fresh as before.
ALTER TABLE runs ADD COLUMN retrains INTEGER NOT NULL DEFAULT 0 CHECK (retrains IN (0, 1));
