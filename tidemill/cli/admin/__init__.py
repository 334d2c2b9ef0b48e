"""Commands about the installation: audit, settings, database, tokens, `top`."""
