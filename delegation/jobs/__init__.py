"""What starts tasks by itself: schedules, and later batches."""
