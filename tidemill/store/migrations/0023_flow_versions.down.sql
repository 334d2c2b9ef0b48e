ALTER TABLE tidemill.job DROP COLUMN refused_by;
ALTER TABLE tidemill.worker DROP COLUMN signatures;
DROP TABLE tidemill.flow_version;
