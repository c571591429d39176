-- What was forgotten, by `tombstones.hash_of`. Relays share a database and not a home, where a file has the same hashes.
CREATE TABLE forgotten (
    hash text COLLATE "C" PRIMARY KEY
);
