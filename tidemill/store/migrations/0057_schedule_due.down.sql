DROP INDEX tidemill.schedule_due;
