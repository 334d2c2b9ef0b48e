-- The runs of workflows with num_concurrent_runs that have begun and not ended. Only their first claim writes here.
CREATE TABLE tidemill.run_slot (
    run_id bigint PRIMARY KEY,
    kind text NOT NULL
);
CREATE INDEX run_slot_kind ON tidemill.run_slot (kind);
