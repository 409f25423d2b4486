"""The one version: defined in ``pyproject.toml`` and read from the installed package."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("passerelle")
SERVER: Final = f"passerelle/{VERSION}"
"""The ``Server`` header of every response."""
