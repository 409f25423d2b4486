"""Runs each example as its page describes, with real processes."""
