"""Trimming: removes archived entries from the stream, unless they are still needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.acks import KEEP_MS, TAB_KEEP_MS
from passerelle.store.replies import as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes

CAP_ENTRIES: Final = 100_000
CAP_BYTES: Final = 64 * 1024 * 1024


@frozen
class Archived:
    """The archive object with the prefix: its address, SHA-256 and the bytes of its entries."""

    address: str
    sha256: str
    bytes: int


@frozen
class Trimmed:
    """``first`` is the lowest remaining sequence."""

    first: int


@frozen
class PrefixHeld:
    """The prefix is still needed: by an open task or action, a device's ack, or a webhook receiver."""

    by: Literal["open", "ack", "target"]
    sequence: int


@frozen
class NotTrimmed:
    """There is nothing to remove, or the prefix is not archived."""

    why: Literal["unarchived", "nothing"]


TrimResult: TypeAlias = Trimmed | PrefixHeld | NotTrimmed


def _read_trimmed(reply: RespValue) -> TrimResult:
    match as_texts(reply):
        case ["ok", first]:
            return Trimmed(int(first))
        case ["held", what, sequence]:
            by = cast("Literal['open', 'ack', 'target']", what)
            return PrefixHeld(by, int(float(sequence)))
        case ["unarchived"]:
            return NotTrimmed("unarchived")
        case _:
            return NotTrimmed("nothing")


_TRIM: Final = Script("trim", _read_trimmed)


class RedisRetention:
    """Trims streams over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def trim(
        self,
        session: str,
        upto: int,
        archived: Archived,
        *,
        cap_entries: int = CAP_ENTRIES,
        cap_bytes: int = CAP_BYTES,
    ) -> TrimResult:
        """Removes entries up to ``upto``; past a cap the older half is removed even if it is needed."""
        shard = shard_of(session)
        stream = StreamRef(StreamKind.SESSION, session)
        return await self._nodes.run(
            _TRIM,
            shard,
            [
                keys.head(stream),
                keys.entries(stream),
                keys.session_open(shard, session),
                keys.stream_acks(stream),
                keys.stream_targets(stream),
            ],
            {
                "upto": str(upto),
                "address": archived.address,
                "hash": archived.sha256,
                "archived": str(archived.bytes),
                "window": KEEP_MS,
                "tab_window": TAB_KEEP_MS,
                "cap_entries": cap_entries,
                "cap_bytes": cap_bytes,
            },
        )
