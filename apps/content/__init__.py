"""Content understanding: sixteen streams of posts through plans on small local models."""

import os

# Engines are processes, one for each processor: threads within a multiplication would only get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
