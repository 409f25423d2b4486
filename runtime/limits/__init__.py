"""Quotas, rates, prices and blocks of shared limits."""
