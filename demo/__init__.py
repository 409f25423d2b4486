"""The demo: plays the whole scenario on one machine and checks it."""
