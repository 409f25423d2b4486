"""Schedules: tasks started at regular times, and their state machine."""
