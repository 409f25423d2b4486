"""The one version: it stands in ``pyproject.toml`` and is read from the installed package."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("passerelle")
SERVER: Final = f"passerelle/{VERSION}"
"""The ``Server`` header of every answer."""
