DROP FUNCTION tidemill.publish(text, jsonb, text);
DROP FUNCTION tidemill.send(bigint, text, jsonb, text, interval, timestamptz);
DROP FUNCTION tidemill.start(text, jsonb, interval, timestamptz, text, text[]);
DROP FUNCTION tidemill.enqueue(text, jsonb, interval, timestamptz, integer, text, text, text, integer, text, interval,
                               text[]);
DROP FUNCTION tidemill.fill_in(text, json, jsonb);
DROP TABLE tidemill.declared;
