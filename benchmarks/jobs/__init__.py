"""Jobs, beside other engines and the raw limit."""
