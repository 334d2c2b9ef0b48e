"""Tokens, accounts and their sessions, credentials, the audit log and idempotency keys."""
