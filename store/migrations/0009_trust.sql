-- What was replaced before this was stored, as a JSON list: prompt, request or reply, and the kind (prompt:api_key).
ALTER TABLE completions ADD COLUMN redacted TEXT;

-- Each line of the audit log has a hash over itself and the hash before it (store.ledger): none can be changed or
-- left out unseen. Lines of before get theirs here, which vouches for them from now on only.
ALTER TABLE audit ADD COLUMN hash BLOB;
CREATE TRIGGER audit_lines_stay_as_they_are BEFORE UPDATE ON audit WHEN OLD.hash IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_lines_stay BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
