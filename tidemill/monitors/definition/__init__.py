"""What users declare: monitors, folds, triggers, channels."""
