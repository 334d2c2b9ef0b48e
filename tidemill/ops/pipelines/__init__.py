"""Operations on pipelines and their states, and on workflows that an event runs."""
