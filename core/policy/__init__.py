"""Edited rules, grants, and the requests about both."""
