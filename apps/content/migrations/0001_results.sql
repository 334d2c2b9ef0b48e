-- What each plan last found for a post. `n` grows with every result, so that the newest are the highest.
CREATE SEQUENCE result_n;
CREATE TABLE result (
    post bigint NOT NULL,
    plan text NOT NULL,
    source text NOT NULL,
    excerpt text NOT NULL,
    found jsonb NOT NULL,
    flagged boolean NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    n bigint NOT NULL DEFAULT nextval('result_n'),
    PRIMARY KEY (post, plan)
);
ALTER SEQUENCE result_n OWNED BY result.n;
CREATE INDEX result_newest ON result (n DESC);
CREATE INDEX result_of_plan ON result (plan, n DESC);
CREATE INDEX result_of_source ON result (source, n DESC);
CREATE INDEX result_flagged ON result (n DESC) WHERE flagged;
CREATE INDEX result_at ON result (at DESC) INCLUDE (plan, flagged);
