DROP TABLE tidemill.run_input, tidemill.snapshot, tidemill.published, tidemill.inbox, tidemill.tick, tidemill.run;
