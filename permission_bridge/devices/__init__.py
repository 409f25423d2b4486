"""Devices of people: pairing, signatures, and the delivery of approval requests to them."""
