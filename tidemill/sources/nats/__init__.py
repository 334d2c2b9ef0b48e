"""NATS JetStream as a source: by durable consumer, or in order."""
