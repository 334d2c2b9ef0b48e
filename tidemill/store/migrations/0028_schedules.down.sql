ALTER TABLE tidemill.schedule ADD COLUMN app text NOT NULL DEFAULT '';
UPDATE tidemill.schedule SET app = application.name
FROM installation.application WHERE format('%s.', application.schema) = 'tidemill.';
ALTER TABLE tidemill.schedule ALTER COLUMN app DROP DEFAULT;
