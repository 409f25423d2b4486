"""Draws the hash of the program that checks evidence, in the form that ``sha256sum -c`` reads."""

import hashlib
from importlib.resources import files

PROGRAM = "check_evidence.py"


def render_hash() -> str:
    """One line: the SHA-256, and the name of the file."""
    content = files("passerelle.cli").joinpath(PROGRAM).read_bytes()
    return f"{hashlib.sha256(content).hexdigest()}  {PROGRAM}\n"
