"""Passerelle: an A2A gateway and remote-channel bridge that keeps the task.

Import from the package that owns the noun: ``passerelle.core``, ``passerelle.store`` and so on.
"""
