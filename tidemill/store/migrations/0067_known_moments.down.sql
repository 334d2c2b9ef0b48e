ALTER TABLE tidemill.job DROP CONSTRAINT within_the_years_1_to_9999;
ALTER TABLE tidemill.run DROP CONSTRAINT within_the_years_1_to_9999;
ALTER TABLE tidemill.inbox DROP CONSTRAINT within_the_years_1_to_9999;
