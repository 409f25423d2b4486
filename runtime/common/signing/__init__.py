"""Signatures with this deployment's keys, over cards, webhooks and tokens; the public keys are in a JWKS."""
