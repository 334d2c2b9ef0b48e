DROP FUNCTION tidemill.claim_limited(text, integer, bigint, text[], boolean);
