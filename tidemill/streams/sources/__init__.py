"""Where messages come from. Each kind has a declaration (`KafkaSource`) and a tap that is open while a stream runs."""
