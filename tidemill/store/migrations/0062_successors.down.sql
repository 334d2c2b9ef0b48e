DROP TRIGGER skip_handed_over ON tidemill.job;
DROP FUNCTION tidemill.skip_handed_over();
ALTER TABLE tidemill.job DROP COLUMN successor;
