"""Stores as each schema number left them, and what reads them."""
