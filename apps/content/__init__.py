"""Content understanding: sixteen streams of posts through plans on small local models."""
