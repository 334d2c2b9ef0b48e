DROP TABLE IF EXISTS tidemill.reserved;
