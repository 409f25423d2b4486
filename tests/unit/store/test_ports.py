"""Each part of the store is what its port says: the type checkers judge the function, and nobody runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.core import ports
from passerelle.store.acks import RedisAcks
from passerelle.store.blobs import DirectoryBlobs
from passerelle.store.channels import RedisChannels
from passerelle.store.due import RedisDueRows
from passerelle.store.hints import RedisHints
from passerelle.store.leases import RedisLeases
from passerelle.store.log import RedisEventLog
from passerelle.store.presence import RedisPresences
from passerelle.store.projections import RedisProjections

if TYPE_CHECKING:
    from passerelle.store.store import Store

    def assign(store: Store) -> None:
        """Fails to check where a signature differs."""
        _log: ports.EventLog = store.log
        _hints: ports.Hints = store.hints
        _leases: ports.Leases = store.leases
        _due: ports.DueRows = store.due
        _projections: ports.Projections = store.projections
        _acks: ports.Acks = store.acks
        _channels: ports.Channels = store.channels
        _presences: ports.Presences = store.presences
        _blobs: ports.Blobs = store.blobs


@pytest.mark.parametrize(
    ("port", "part"),
    [
        (ports.EventLog, RedisEventLog),
        (ports.Hints, RedisHints),
        (ports.Leases, RedisLeases),
        (ports.DueRows, RedisDueRows),
        (ports.Projections, RedisProjections),
        (ports.Acks, RedisAcks),
        (ports.Channels, RedisChannels),
        (ports.Presences, RedisPresences),
        (ports.Blobs, DirectoryBlobs),
    ],
)
def test_part_has_every_method_of_its_port(port: type, part: type) -> None:
    wanted = {name for name in vars(port) if not name.startswith("_")}
    assert wanted
    assert wanted <= set(dir(part))
