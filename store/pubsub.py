"""Messages between instances that nobody stores: nudges, changed rules, text deltas.

Each goes over a hint channel, placed by the shard of the instance, home session or session that it is about, so that a
cluster spreads them over its nodes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput
from passerelle.core.events import decode_event
from passerelle.core.ids import derive_shard, shard_of
from passerelle.core.payloads.run import ModelDelta
from passerelle.core.ports.deltas import TextDelta
from passerelle.core.ports.signals import Nudge
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.events import EncodedEvent
    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import StreamRef
    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes

_NOBODY: Final = "-"
_LINE: Final = re.compile(r"([wcg]) ([!-~]+) ([!-~]+)")
"""``w <task> <action, or ->``: look; ``c <task> -``: its agent has called back; ``g <task> -``: give way."""


class RedisNudges:
    """``core.ports.signals.Nudges`` over a server or cluster."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def nudge(self, instance: str, nudge: Nudge) -> None:
        """Tells an instance, once.

        Raises:
            StoreUnavailable: whether it was told is not known; nothing is tried again.
        """
        shard = _place(instance)
        line = f"{_name_kind(nudge)} {nudge.task} {nudge.action or _NOBODY}"
        await self._nodes.write(shard, pack("SPUBLISH", keys.instance_hints(shard, instance), line))

    async def listen(self, instance: str, on_nudge: Callable[[Nudge], object]) -> None:
        """Returns once each further nudge of the instance is told here.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is told then.
            ValueError: somebody listens for the instance already.
        """
        shard = _place(instance)

        def hear(raw: bytes) -> None:
            nudge = read_nudge(raw)
            if nudge is not None:
                on_nudge(nudge)

        await self._hints.listen(shard, keys.instance_hints(shard, instance), hear)


def read_nudge(raw: bytes) -> Nudge | None:
    """What a message says; None for one of another version, whose due row comes all the same."""
    said = _LINE.fullmatch(raw.decode("latin-1"))
    if said is None:
        return None
    return Nudge(
        said[2],
        "" if said[3] == _NOBODY else said[3],
        called_back=said[1] == "c",
        gives_way=said[1] == "g",
    )


def _name_kind(nudge: Nudge) -> str:
    if nudge.gives_way:
        return "g"
    return "c" if nudge.called_back else "w"


def _place(instance: str) -> Shard:
    return derive_shard("instance", instance)


class RedisRuleUpdates:
    """``core.ports.signals.RuleUpdates`` over a server or cluster."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def publish(self, home: str) -> None:
        """Tells every instance, once.

        Raises:
            StoreUnavailable: whether it was told is not known; nothing is tried again.
        """
        shard = shard_of(home)
        await self._nodes.write(shard, pack("SPUBLISH", keys.rule_hints(shard, home), ""))

    async def listen(self, home: str, on_update: Callable[[], None]) -> None:
        """Returns once every further news is told here, and when some may have been lost.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is told then.
            ValueError: somebody listens already.
        """
        shard = shard_of(home)
        await self._hints.listen(shard, keys.rule_hints(shard, home), lambda _raw: on_update())
        self._hints.on_loss(on_update)


class RedisDeltas:
    """``core.ports.deltas.Deltas``."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def publish(self, stream: StreamRef, event: EncodedEvent) -> int:
        """Publishes one delta once, and says how many instances listen.

        Raises:
            StoreUnavailable: whether it was published is not known; nothing is tried again.
        """
        command = pack("SPUBLISH", keys.stream_deltas(stream), b"{" + event.body)
        return as_int(await self._nodes.write(stream.shard, command))

    async def listen(self, stream: StreamRef, on_delta: Callable[[TextDelta], None]) -> None:
        """Returns once each further delta of the stream is told.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nobody listens then.
            ValueError: somebody listens to the stream already.
        """

        def hear(raw: bytes) -> None:
            delta = read_delta(raw)
            if delta is not None:
                on_delta(delta)

        await self._hints.listen(stream.shard, keys.stream_deltas(stream), hear)

    async def ignore(self, stream: StreamRef) -> None:
        """Ends what ``listen`` began."""
        await self._hints.ignore(stream.shard, keys.stream_deltas(stream))


def read_delta(raw: bytes) -> TextDelta | None:
    """The delta of a published envelope; None for what is none: text that may be lost is no reason to stop hearing."""
    try:
        said = decode_event(raw).fact.payload
    except InvalidInput:
        return None
    return TextDelta(said.block, said.at, said.text) if isinstance(said, ModelDelta) else None
