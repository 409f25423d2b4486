"""Each part of the store implements its port: the type checkers judge the function, which is never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.core.ports.blobs import Blobs, Uploads
from passerelle.core.ports.channels import Acks, Channels, Presences
from passerelle.core.ports.due import DueRows
from passerelle.core.ports.leases import Leases
from passerelle.core.ports.log import EventLog, Hints
from passerelle.core.ports.projections import Projections
from passerelle.store.acks import RedisAcks
from passerelle.store.blobs import DirectoryBlobs
from passerelle.store.channels import RedisChannels, RedisPresences
from passerelle.store.due import RedisDueRows
from passerelle.store.leases import RedisLeases
from passerelle.store.log import RedisEventLog
from passerelle.store.projections import RedisProjections
from passerelle.store.stream_hints import StreamHints
from passerelle.store.uploads import RedisUploads

if TYPE_CHECKING:
    from passerelle.store.store import Store

    def assign(store: Store) -> None:
        """Fails to check where a signature differs."""
        _log: EventLog = store.log
        _hints: Hints = store.hints
        _leases: Leases = store.leases
        _due: DueRows = store.due
        _projections: Projections = store.projections
        _acks: Acks = store.acks
        _channels: Channels = store.channels
        _presences: Presences = store.presences
        _blobs: Blobs = store.blobs
        _uploads: Uploads = store.uploads


@pytest.mark.parametrize(
    ("port", "part"),
    [
        (EventLog, RedisEventLog),
        (Hints, StreamHints),
        (Leases, RedisLeases),
        (DueRows, RedisDueRows),
        (Projections, RedisProjections),
        (Acks, RedisAcks),
        (Channels, RedisChannels),
        (Presences, RedisPresences),
        (Blobs, DirectoryBlobs),
        (Uploads, RedisUploads),
    ],
)
def test_part_has_every_method_of_its_port(port: type, part: type) -> None:
    wanted = {name for name in vars(port) if not name.startswith("_")}
    assert wanted
    assert wanted <= set(dir(part))
