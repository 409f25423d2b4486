"""Prints the owner token, once, when it is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.runtime.common.secret import Secret


def show_owner(token: Secret, path: Path) -> None:
    """Prints the token and the file that stores it."""
    print(f"owner token, shown this once and kept in {path}:", flush=True)
    print(f"  {token.get_secret_value()}", flush=True)
