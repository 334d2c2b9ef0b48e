"""Operations on monitors, entities, alerts and silences."""
