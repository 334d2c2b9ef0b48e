-- What each plan last found for a post. `n` grows with every result, so that the newest are the highest.
CREATE SEQUENCE content_result_n;
CREATE TABLE content_result (
    post bigint NOT NULL,
    plan text NOT NULL,
    source text NOT NULL,
    excerpt text NOT NULL,
    found jsonb NOT NULL,
    flagged boolean NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    n bigint NOT NULL DEFAULT nextval('content_result_n'),
    PRIMARY KEY (post, plan)
);
ALTER SEQUENCE content_result_n OWNED BY content_result.n;
CREATE INDEX content_result_newest ON content_result (n DESC);
CREATE INDEX content_result_of_plan ON content_result (plan, n DESC);
CREATE INDEX content_result_of_source ON content_result (source, n DESC);
CREATE INDEX content_result_flagged ON content_result (n DESC) WHERE flagged;
CREATE INDEX content_result_at ON content_result (at DESC) INCLUDE (plan, flagged);
