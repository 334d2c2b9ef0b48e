"""Claiming and finishing jobs, also by fair key and by model."""
