"""The verbs of the command line that call a running gateway."""
