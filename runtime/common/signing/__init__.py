"""Signatures by keys of ours, over cards, webhooks and tokens; the public halves stand in a JWKS."""
