"""The classroom: follow every student's block programs, infer how they work, show who needs help."""
