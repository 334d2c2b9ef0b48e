"""Operations on streams and dead letters."""
