"""Hooks: operator code that may allow, reject or question a case at named points, in process or as an HTTP endpoint."""
