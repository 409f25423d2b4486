"""Logs, metrics, spans and what joins them."""
