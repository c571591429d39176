-- What a server says of its tokens where it gives no ids: the bytes of each, one for each log-prob (store.captured.rows).
-- `logprobs_of`: what the log-probs are of, `model` (before sampling) or `temperature` (after that, before top-p and
-- top-k). NULL: of the sampling distribution.
ALTER TABLE completions ADD COLUMN pieces BLOB;
ALTER TABLE completions ADD COLUMN logprobs_of TEXT;
