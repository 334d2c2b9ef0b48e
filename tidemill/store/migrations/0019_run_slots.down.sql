DROP TABLE tidemill.run_slot;
