"""The verbs of the command line that ask a gateway which runs."""
