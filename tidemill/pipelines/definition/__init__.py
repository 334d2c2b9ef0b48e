"""What users declare: pipelines, stages, patterns; and the hash of their code."""
