"""Restores archived sessions: a session with new activity is moved back to the engine, unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ids import Shard, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.append import Arguments
from passerelle.store.archive.locator import place_row
from passerelle.store.replies import as_int, as_list
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.reader import Archive
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_FORGET_ROWS: Final = Script("forget_rows", as_int)
_RESTORE: Final = Script("restore_session", as_int)


async def restore_session(nodes: Nodes, archive: Archive, shard: Shard, name: str) -> bool:
    """Restores the session of an id from the archive; returns whether it was there.

    Raises:
        StoreUnavailable: it cannot be read, or the engine does not take it.
    """
    located = await archive.locate(shard, name)
    if located is None:
        # Otherwise every later append would look up the row of the forgotten session again.
        if (row := await archive.find_forgotten(shard, name)) is not None:
            await drop_rows(nodes, shard, [name], row)
        return False
    await put_session(nodes, *located)
    return True


async def drop_rows(nodes: Nodes, shard: Shard, names: Iterable[str], row: bytes) -> int:
    """Deletes the rows of ids that have this value; returns how many did. Raises StoreUnavailable."""
    arguments = Arguments(())
    at = arguments.value(row)
    places = [place_row(shard, name) for name in names]
    rows: list[ControlValue] = [[arguments.key(key), arguments.value(name)] for key, name in places]
    control: dict[str, ControlValue] = {"row": at, "rows": rows}
    return await nodes.run(_FORGET_ROWS, shard, arguments.keys, control, arguments.values)


async def put_session(nodes: Nodes, frame: SessionFrame, row: bytes | None) -> bool:
    """Stores a session in the engine from its frame, and deletes its archive rows; returns whether it is there now.

    ``row``: the value of each of the rows; None for a session of another store, of which nothing may exist here.

    Raises:
        StoreUnavailable: the engine does not take it.
    """
    session, shard = frame.session, shard_of(frame.session)
    stream = StreamRef(StreamKind.SESSION, session)
    arguments = Arguments(
        (
            keys.head(stream),
            keys.entries(stream),
            keys.session_tasks(shard, session),
            keys.stream_targets(stream),
        )
    )
    at: ControlValue = False if row is None else arguments.value(row)
    places = [place_row(shard, ref.id) for ref in frame.hashes]
    rows: list[ControlValue] = [[arguments.key(key), arguments.value(name)] for key, name in places]
    entities: list[ControlValue] = [
        [arguments.key(keys.entity(ref)), *arguments.extend(as_list(flat))]
        for ref, flat in frame.hashes.items()
    ]
    # ZRANGE returns member and score, ZADD takes score and member.
    listed, receivers = as_list(frame.tasks), as_list(frame.targets)
    tasks = [word for pair in zip(listed[1::2], listed[::2], strict=True) for word in pair]
    control: dict[str, ControlValue] = {
        "row": at,
        "rows": rows,
        "entities": entities,
        "tasks": arguments.extend(tasks) if tasks else False,
        "receivers": arguments.extend(receivers) if receivers else False,
        "entries": [[name.decode(), *arguments.extend(members)] for name, members in frame.entries],
    }
    return bool(await nodes.run(_RESTORE, shard, arguments.keys, control, arguments.values))
