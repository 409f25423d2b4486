"""Hooks: code of the operator's that has a say at named points, in this process or behind an HTTP endpoint."""
