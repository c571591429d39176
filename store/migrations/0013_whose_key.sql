-- The key that asked: the id of one that was handed out, or a word for those of the settings (proxy.keys). A name in a
-- request proves nothing, so who may read a completion, go on from it or delete it hangs on this. NULL: from before.
ALTER TABLE completions ADD COLUMN key TEXT;
CREATE INDEX completions_key ON completions (key, user);
