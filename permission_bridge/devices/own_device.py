"""Whether this machine is paired, without importing the key code: most machines are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "own-device"
"""Below the data directory: the device id and its key, readable by the owner only."""


def is_device(data_dir: Path) -> bool:
    """Whether this machine was paired; ``device_keys`` reads the file."""
    return (data_dir / FILE).exists()
