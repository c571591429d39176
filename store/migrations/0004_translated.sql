-- Whether the answer was asked for as chat completions and said again in the client's dialect.
ALTER TABLE completions ADD COLUMN translated INTEGER NOT NULL DEFAULT 0;
