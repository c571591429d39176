-- Several adapters of one base, each with a pointer of its own. The common line has no row: its pointer is `pointer`.
CREATE TABLE lines (
    name       text COLLATE "C" PRIMARY KEY,
    live       bigint NOT NULL,
    previous   bigint NOT NULL,
    changed_at double precision NOT NULL,
    reason     text COLLATE "C" NOT NULL,
    actor      text COLLATE "C" NOT NULL,
    origin     bigint NOT NULL,
    created_at double precision NOT NULL,
    retired_at double precision,
    users      text COLLATE "C" NOT NULL DEFAULT '[]',
    agents     text COLLATE "C" NOT NULL DEFAULT '[]'
);
CREATE TRIGGER lines_change AFTER INSERT OR UPDATE ON lines FOR EACH STATEMENT EXECUTE FUNCTION tell_relays();

ALTER TABLE completions ADD COLUMN line text COLLATE "C" NOT NULL DEFAULT 'common';
CREATE INDEX completions_line ON completions (line) WHERE line <> 'common';
ALTER TABLE episodes ADD COLUMN line text COLLATE "C" NOT NULL DEFAULT 'common';
DROP INDEX episodes_left_out;
CREATE INDEX episodes_left_out ON episodes (line, left_out) WHERE left_out IS NOT NULL;
ALTER TABLE runs ADD COLUMN line text COLLATE "C" NOT NULL DEFAULT 'common';
CREATE INDEX runs_line ON runs (line);
ALTER TABLE adapters ADD COLUMN line text COLLATE "C" NOT NULL DEFAULT 'common';
CREATE INDEX adapters_line ON adapters (line);
ALTER TABLE experiments ADD COLUMN line text COLLATE "C" NOT NULL DEFAULT 'common';
ALTER TABLE keys ADD COLUMN line text COLLATE "C";
