DROP TABLE tidemill.meter, tidemill.process, tidemill.host_sample, tidemill.host;
