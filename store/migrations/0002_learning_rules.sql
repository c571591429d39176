-- What kind of judgement a value stands for: a thumb and five stars are both 1. Of older ones it is not known.
ALTER TABLE ratings ADD COLUMN scale TEXT NOT NULL DEFAULT 'unit' CHECK (scale IN ('thumb', 'stars', 'unit'));

-- Who made the live version live: one that a person chose is never rolled back by rlproxy itself.
ALTER TABLE pointer ADD COLUMN actor TEXT NOT NULL DEFAULT '';

-- Why rlproxy rolled this version back; such a one goes live again only by a person's word.
ALTER TABLE adapters ADD COLUMN withdrawn TEXT;
