"""Delegated work: runs at agents, jobs and schedules, and the background duties of an instance."""
