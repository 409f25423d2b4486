"""Jobs and schedules: they start tasks without a request of a caller for each."""
