"""What is sent to webhooks: kinds of targets, when to try again, and the worker that delivers."""
