"""Webhook deliveries of every kind: push notifications, streams, notifiers."""
