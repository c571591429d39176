-- The value that the same rater gave the answer by the other scale, thumbs or stars, on the same side: `hybrid` takes
-- both.
ALTER TABLE ratings ADD COLUMN counterpart REAL;
