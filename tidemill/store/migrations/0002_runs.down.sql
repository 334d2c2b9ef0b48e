DROP TABLE tidemill.snapshot, tidemill.published, tidemill.inbox, tidemill.tick, tidemill.run;
