DROP TABLE tidemill.state_content;
