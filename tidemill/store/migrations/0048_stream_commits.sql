-- The last transaction of outcomes of each committer: after a lost connection it tells whether that one was committed,
-- in whatever cluster the database is by then.
CREATE TABLE tidemill.stream_commit (
    committer uuid PRIMARY KEY,
    number    bigint NOT NULL,
    at        timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

-- What happened in the attempts at a message so far.
ALTER TABLE tidemill.stream_retry ADD COLUMN history json;
ALTER TABLE tidemill.stream_attempt ADD COLUMN history json;
ALTER TABLE tidemill.dead_letter ADD COLUMN history json;
