"""``store.json``: which engine last opened a data directory, so that an older one is refused.

An older engine does not always fail: Redis 6.2 ignores the directory of a multi-part AOF and starts
empty without an error. Forward works (a Redis 7.0 directory opens in Valkey 9.1), backward never.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.errors import EngineFailed
from passerelle.store.data_directory import refuse_directory
from passerelle.store.engine_binary import EngineBinary
from passerelle.store.keys import SCHEMA
from passerelle.store.server_version import parse_version

if TYPE_CHECKING:
    from pathlib import Path

_FILE: Final = "store.json"
_MAGIC: Final = re.compile(rb"(?:REDIS(\d{4})|VALKEY(\d{3}))")
_FIRST_CLOSED_REDIS: Final = (7, 4, 0)
"""From here on the file formats of the two engines have parted."""


@dataclass(frozen=True, slots=True)
class EngineStamp:
    """``epoch`` is drawn once per data directory; ``rdb_version`` is 0 when no base file was there to tell."""

    engine: str
    version: str
    rdb_version: int
    schema: int
    epoch: str


def read_stamp(directory: Path) -> EngineStamp | None:
    """The stamp, or None for a directory that was never opened.

    Raises:
        EngineFailed: the file is there and cannot be read.
    """
    path = directory / _FILE
    try:
        fields = orjson.loads(path.read_bytes())
        return EngineStamp(
            engine=str(fields["engine"]),
            version=str(fields["version"]),
            rdb_version=int(fields["rdb_version"]),
            schema=int(fields["schema"]),
            epoch=str(fields["epoch"]),
        )
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        message = f"{path} is damaged: {error!r}"
        hint = (
            "take store.json of a backup of this directory: it says which engine may open the data"
        )
        raise EngineFailed(message, hint=hint, path=str(path)) from error


def write_stamp(directory: Path, stamp: EngineStamp) -> None:
    """Replaces the stamp in one step, after a successful start.

    Raises:
        EngineFailed: the directory cannot be written.
    """
    path = directory / _FILE
    fresh = directory / f"{_FILE}.{os.getpid()}"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, orjson.dumps(asdict(stamp), option=orjson.OPT_INDENT_2))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except OSError as error:
        raise refuse_directory(directory, error) from error


def refuse_mismatch(stamp: EngineStamp | None, binary: EngineBinary) -> None:
    """Lets an engine open a directory only when it can read all that the last one wrote.

    Raises:
        EngineFailed: the engine is older than the stamp, of the other family, or the schema is newer than ours.
    """
    if stamp is None:
        return
    if stamp.schema > SCHEMA:
        message = f"the data directory has schema {stamp.schema}, this version knows {SCHEMA}"
        hint = "start the version of passerelle that wrote it, or a newer one: there is no way back"
        raise EngineFailed(message, hint=hint)
    if not _can_open(stamp, binary):
        message = (
            f"the data directory was last opened by {stamp.engine} {stamp.version};"
            f" {binary.name} {binary.version_text} at {binary.path} cannot read it safely"
        )
        hint = f"name that engine or a newer {stamp.engine} with engine_path"
        raise EngineFailed(message, hint=hint, engine=binary.name, version=binary.version_text)


def stamp_start(
    directory: Path, stamp: EngineStamp | None, binary: EngineBinary, epoch: str
) -> None:
    """Writes what a successful start with ``binary`` says; ``epoch`` is used for a new directory only."""
    write_stamp(
        directory,
        EngineStamp(
            engine=binary.name,
            version=binary.version_text,
            rdb_version=read_rdb_version(directory),
            schema=SCHEMA,
            epoch=stamp.epoch if stamp is not None else epoch,
        ),
    )


def read_rdb_version(directory: Path) -> int:
    """The format version in the head of the newest base file, 0 when there is none."""
    bases = sorted(
        (directory / "appendonlydir").glob("*.base.rdb"), key=lambda path: path.stat().st_mtime
    )
    if not bases:
        return 0
    with bases[-1].open("rb") as file:
        match = _MAGIC.match(file.read(9))
    return int(match[1] or match[2]) if match else 0


def _can_open(stamp: EngineStamp, binary: EngineBinary) -> bool:
    before = parse_version(stamp.version)
    if stamp.engine == binary.name:
        return binary.version >= before
    return stamp.engine == "redis" and before < _FIRST_CLOSED_REDIS
