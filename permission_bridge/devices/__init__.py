"""Devices of people: how they come to be trusted, what they sign, and how they are told of questions."""
