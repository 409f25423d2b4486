"""What the rooms above share: time, secrets, records, limits, observability."""
