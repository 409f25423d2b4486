"""What every room above works with: time, secrets, records, limits, observability."""
