DROP TRIGGER tell_ends_apart ON tidemill.worker;
-- The version before reads a row for each end.
WITH several AS (DELETE FROM tidemill.inbox WHERE work = 0 RETURNING run_id, due_at, suspended, data)
INSERT INTO tidemill.inbox (run_id, work, due_at, suspended, data)
SELECT s.run_id, (one ->> 'work')::bigint, s.due_at, s.suspended, one
FROM several AS s CROSS JOIN LATERAL json_array_elements(s.data) AS one;
DROP FUNCTION tidemill.tell_ends_apart();
ALTER TABLE tidemill.worker DROP COLUMN reads_ends;
