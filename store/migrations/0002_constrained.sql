-- Of a reply by a schema or with a forced call: float32, the log-probs of its tokens, had nothing been ruled out.
ALTER TABLE completions ADD COLUMN unconstrained_logprobs BLOB;
