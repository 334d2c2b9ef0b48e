-- What small states held before their last builds: a build that replaces an output keeps the content that was there.
CREATE TABLE tidemill.state_content (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text COLLATE "C" NOT NULL,
    stage       text COLLATE "C" NOT NULL,
    entity      text COLLATE "C" NOT NULL,
    path        text COLLATE "C" NOT NULL,
    hash        text COLLATE "C" NOT NULL,
    content     bytea NOT NULL,
    replaced_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX state_content_path ON tidemill.state_content (pipeline, path, id DESC);
CREATE INDEX state_content_replaced_at ON tidemill.state_content USING brin (replaced_at);
