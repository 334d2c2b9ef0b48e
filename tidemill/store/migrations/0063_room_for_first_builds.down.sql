ALTER TABLE tidemill.state SET (fillfactor = 80);
