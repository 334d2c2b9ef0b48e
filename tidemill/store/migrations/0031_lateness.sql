-- How late the events of a monitor's source have been in each of the last minutes: what is usual sets the overlap.
ALTER TABLE tidemill.monitor ADD COLUMN lateness_by_minute json;
