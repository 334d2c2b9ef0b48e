"""Operations on runs of flows and dags, and on human input."""
