"""Kafka as a source: by consumer group for streams, by assigned partitions for monitors."""
