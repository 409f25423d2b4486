"""Deliveries to webhooks of every kind: push notifications, streams, notifiers."""
