"""Channels under load and faults, with checks during the run: ``make stress``."""
