"""Whether this machine is a device, without the reading of keys: most machines are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "own-device"
"""Below the data directory: the id of the device and its key, for its owner alone."""


def is_device(data_dir: Path) -> bool:
    """Whether this machine has been paired; what the file holds is read by ``device_keys``."""
    return (data_dir / FILE).exists()
