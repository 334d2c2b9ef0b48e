-- States: what is known about everything that pipelines make. The files themselves are the truth; these tables are
-- the index that says what each was made from, by which code, and what went wrong.

-- One row per state. An empty `content` means that it was never built. The columns `intent_*` say what a builder is
-- about to put in place: if it dies in between, whoever finds that content there finishes the build.
CREATE TABLE tidemill.state (
    pipeline       text COLLATE "C" NOT NULL,
    stage          text COLLATE "C" NOT NULL,
    entity         text COLLATE "C" NOT NULL,
    version        bigint NOT NULL DEFAULT 0, -- grows with everything that makes a build under way worthless
    signature      bigint NOT NULL DEFAULT 0, -- of the output's file when its content was last known
    size           bigint NOT NULL DEFAULT 0,
    built_at       timestamptz,
    took           real,
    content        text COLLATE "C" NOT NULL DEFAULT '',
    code           text COLLATE "C" NOT NULL DEFAULT '',
    inputs         text COLLATE "C" NOT NULL DEFAULT '',
    built_by       text,
    invalid_by     text,
    intent_by      text COLLATE "C",
    intent_size    bigint,
    intent_content text COLLATE "C",
    intent_code    text COLLATE "C",
    intent_inputs  text COLLATE "C",
    PRIMARY KEY (pipeline, stage, entity)
) WITH (fillfactor = 80);

-- The content of files that nobody here makes, so that a file is read again only when its signature has changed.
CREATE TABLE tidemill.state_file (
    pipeline  text COLLATE "C" NOT NULL,
    path      text COLLATE "C" NOT NULL,
    signature bigint NOT NULL,
    size      bigint NOT NULL,
    content   text COLLATE "C" NOT NULL,
    PRIMARY KEY (pipeline, path)
) WITH (fillfactor = 80);

-- The newest failure of a state, for one code and one set of inputs. Without `retry_at` it is parked.
CREATE TABLE tidemill.state_failure (
    pipeline  text COLLATE "C" NOT NULL,
    stage     text COLLATE "C" NOT NULL,
    entity    text COLLATE "C" NOT NULL,
    code      text COLLATE "C" NOT NULL,
    inputs    text COLLATE "C" NOT NULL,
    attempts  integer NOT NULL,
    error     text NOT NULL,
    log       text NOT NULL DEFAULT '',
    first_at  timestamptz NOT NULL,
    failed_at timestamptz NOT NULL,
    retry_at  timestamptz,
    PRIMARY KEY (pipeline, stage, entity)
);

-- What a stage's code was made of, for each of its hashes.
CREATE TABLE tidemill.state_code (
    pipeline text COLLATE "C" NOT NULL,
    stage    text COLLATE "C" NOT NULL,
    code     text COLLATE "C" NOT NULL,
    parts    json NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, stage, code)
);

-- Every build; whoever drives a pipeline forgets the old ones, some at a time.
CREATE TABLE tidemill.state_build (
    at       timestamptz NOT NULL DEFAULT now(),
    pipeline text COLLATE "C" NOT NULL,
    stage    text COLLATE "C" NOT NULL,
    entity   text COLLATE "C" NOT NULL,
    outcome  text COLLATE "C" NOT NULL, -- built, same, failed, adopted, finished
    took     real,
    size     bigint,
    code     text COLLATE "C" NOT NULL,
    content  text COLLATE "C" NOT NULL DEFAULT '',
    built_by text,
    reason   text,
    log      text
);
CREATE INDEX state_build_at ON tidemill.state_build USING brin (at);
CREATE INDEX state_build_entity ON tidemill.state_build (pipeline, stage, entity, at DESC);

-- What operators want of a pipeline (stage '') or of a stage.
CREATE TABLE tidemill.state_control (
    pipeline       text COLLATE "C" NOT NULL,
    stage          text COLLATE "C" NOT NULL,
    paused_by      text,
    approved_by    text,
    approved_code  text COLLATE "C",
    approved_until timestamptz,
    PRIMARY KEY (pipeline, stage)
);

-- States of pipelines that keep them in the database.
CREATE TABLE tidemill.state_blob (
    store      text COLLATE "C" NOT NULL,
    path       text COLLATE "C" NOT NULL,
    version    bigint GENERATED ALWAYS AS IDENTITY,
    written_at timestamptz NOT NULL DEFAULT now(),
    content    bytea NOT NULL,
    PRIMARY KEY (store, path)
);
