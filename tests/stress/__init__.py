"""Channels under load and faults, checked as they go: ``make stress``."""
