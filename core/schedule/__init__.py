"""Schedules: what starts tasks at times, and its decisions."""
