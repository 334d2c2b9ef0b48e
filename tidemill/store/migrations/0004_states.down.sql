DROP TABLE tidemill.state_blob, tidemill.state_control, tidemill.state_build, tidemill.state_code, tidemill.state_failure, tidemill.state_file, tidemill.state;
