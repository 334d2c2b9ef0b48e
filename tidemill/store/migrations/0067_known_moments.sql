-- needs_at_least: 49
-- Moments that Python does not know, such as `infinity`, are refused: one such job would stop every process that reads it.
ALTER TABLE tidemill.job ADD CONSTRAINT within_the_years_1_to_9999
    CHECK (due_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z'
           AND deadline BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z') NOT VALID;
ALTER TABLE tidemill.run ADD CONSTRAINT within_the_years_1_to_9999
    CHECK (start_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z'
           AND deadline BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z') NOT VALID;
ALTER TABLE tidemill.inbox ADD CONSTRAINT within_the_years_1_to_9999
    CHECK (due_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z') NOT VALID;
