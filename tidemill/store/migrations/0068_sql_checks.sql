-- needs_at_least: 49
-- The SQL functions refuse what no other way in takes, also those that start runs, send events and publish messages.

CREATE FUNCTION tidemill.refuse_if(is_wrong boolean, said text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF is_wrong THEN
        RAISE EXCEPTION '%', said USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
REVOKE ALL ON FUNCTION tidemill.refuse_if FROM PUBLIC;

CREATE FUNCTION tidemill.is_name(text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce($1 ~ '^[^[:space:][:cntrl:]]([^[:cntrl:]]{0,198}[^[:space:][:cntrl:]])?$', false)
$$;
REVOKE ALL ON FUNCTION tidemill.is_name FROM PUBLIC;

-- The rest of the functions stays as it is, and so do the rights on them.
DO $$
BEGIN
    EXECUTE replace(pg_get_functiondef('tidemill.insert_job'::regproc),
        $_$    IF insert_job.priority NOT BETWEEN 0 AND 9 THEN$_$,
        $_$    IF least(insert_job.delay, insert_job.deadline, insert_job.unique_for, insert_job.debounce) < '0' THEN
        RAISE EXCEPTION 'delay, deadline, unique_for and debounce are not below zero'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF insert_job.priority NOT BETWEEN 0 AND 9 THEN$_$);

    EXECUTE replace(pg_get_functiondef('tidemill.enqueue_batch'::regproc),
        $_$    INSERT INTO tidemill.batch (name, is_open$_$,
        $_$    PERFORM tidemill.refuse_if(enqueue_batch.name IS NOT NULL AND NOT tidemill.is_name(enqueue_batch.name),
        quote_literal(left(enqueue_batch.name, 100))
            || ' is not a batch name: use 1 to 200 printable characters, no space at the ends');
    INSERT INTO tidemill.batch (name, is_open$_$);

    -- A run worker checks the arguments of such a dag when it begins.
    EXECUTE replace(replace(pg_get_functiondef('tidemill.start'::regproc),
        $_$    IF rated IS NOT NULL AND usual ->> 'key_rate' IS NULL THEN$_$,
        $_$    PERFORM tidemill.refuse_if(least(start.delay, start.deadline) < '0',
        'delay and deadline are not below zero');
    PERFORM tidemill.refuse_if(array_position(start.tags, NULL) IS NOT NULL, 'a tag is NULL');
    PERFORM tidemill.refuse_if(greatest(octet_length(alone), octet_length(rated)) > 1800,
        'unique_key and rate_key have at most 1800 bytes');
    PERFORM tidemill.refuse_if(starts_with(alone, '~'), 'unique_key begins with ~, which is for Tidemill''s own keys');
    IF rated IS NOT NULL AND usual ->> 'key_rate' IS NULL THEN$_$),
        $_$'args', start.input)$_$, $_$'args', start.input, 'unchecked', true)$_$);

    EXECUTE replace(pg_get_functiondef('tidemill.send'::regproc),
        $_$    -- The event classes that run workers$_$,
        $_$    PERFORM tidemill.refuse_if(
        EXISTS (SELECT FROM tidemill.run AS r WHERE r.id = send.run AND r.kind = ':dag'),
        'run ' || send.run || ' is of a dag, which takes no events');
    PERFORM tidemill.refuse_if(send.event IS NULL, 'an event is sent by the name of its class, such as Paid');
    PERFORM tidemill.refuse_if(jsonb_typeof(send.value) IS DISTINCT FROM 'object',
        'the value of event ' || send.event || ' must be a JSON object, such as {"by": "ann"}');
    PERFORM tidemill.refuse_if(send.at IS NOT NULL AND send.delay IS NOT NULL, 'give either delay or at, not both');
    PERFORM tidemill.refuse_if(send.delay < '0', 'delay is not below zero');
    -- The event classes that run workers$_$);

    EXECUTE replace(pg_get_functiondef('tidemill.publish'::regproc),
        $_$    INSERT INTO tidemill.event_log$_$,
        $_$    PERFORM tidemill.refuse_if(NOT tidemill.is_name(publish.topic),
        coalesce(quote_literal(left(publish.topic, 100)), 'NULL')
            || ' is not a topic name: use 1 to 200 printable characters, no space at the ends');
    PERFORM tidemill.refuse_if(publish.payload IS NULL, 'payload is NULL: write ''null'' for the null of JSON');
    INSERT INTO tidemill.event_log$_$);
END $$;
