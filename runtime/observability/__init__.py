"""Logs, metrics, spans, and the ids that connect them."""
