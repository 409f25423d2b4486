"""Unstored messages between instances: driver nudges, changed rules, text deltas.

Each is sent over a hint channel in the shard of the instance, home session or session that it is about, so that a
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

_NO_ACTION: Final = "-"
_LINE: Final = re.compile(r"([wcg]) ([!-~]+) ([!-~]+)")
"""``w <task> <action, or ->``: check; ``c <task> -``: its agent has called back; ``g <task> -``: yield."""


class RedisNudges:
    """``core.ports.signals.Nudges`` over a server or cluster."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def nudge(self, instance: str, nudge: Nudge) -> None:
        """Notifies an instance, once.

        Raises:
            StoreUnavailable: the outcome is unknown; it is not retried.
        """
        shard = _place(instance)
        line = f"{_name_kind(nudge)} {nudge.task} {nudge.action or _NO_ACTION}"
        await self._nodes.write(shard, pack("SPUBLISH", keys.instance_hints(shard, instance), line))

    async def listen(self, instance: str, on_nudge: Callable[[Nudge], object]) -> None:
        """Returns once further nudges of the instance are received here.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: the instance is subscribed already.
        """
        shard = _place(instance)

        def receive(raw: bytes) -> None:
            nudge = read_nudge(raw)
            if nudge is not None:
                on_nudge(nudge)

        await self._hints.listen(shard, keys.instance_hints(shard, instance), receive)


def read_nudge(raw: bytes) -> Nudge | None:
    """Parses a message; None for one of another version, whose due row is still processed."""
    said = _LINE.fullmatch(raw.decode("latin-1"))
    if said is None:
        return None
    return Nudge(
        said[2],
        "" if said[3] == _NO_ACTION else said[3],
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
        """Notifies every instance, once.

        Raises:
            StoreUnavailable: the outcome is unknown; it is not retried.
        """
        shard = shard_of(home)
        await self._nodes.write(shard, pack("SPUBLISH", keys.rule_hints(shard, home), ""))

    async def listen(self, home: str, on_update: Callable[[], None]) -> None:
        """Returns once ``on_update`` is called for every further change, and when some may have been lost.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: the home is subscribed already.
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
        """Publishes one delta once; returns the number of listening instances.

        Raises:
            StoreUnavailable: the outcome is unknown; it is not retried.
        """
        command = pack("SPUBLISH", keys.stream_deltas(stream), b"{" + event.body)
        return as_int(await self._nodes.write(stream.shard, command))

    async def listen(self, stream: StreamRef, on_delta: Callable[[TextDelta], None]) -> None:
        """Returns once further deltas of the stream are received here.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: the stream is subscribed already.
        """

        def receive(raw: bytes) -> None:
            delta = read_delta(raw)
            if delta is not None:
                on_delta(delta)

        await self._hints.listen(stream.shard, keys.stream_deltas(stream), receive)

    async def ignore(self, stream: StreamRef) -> None:
        """Ends the subscription of ``listen``."""
        await self._hints.ignore(stream.shard, keys.stream_deltas(stream))


def read_delta(raw: bytes) -> TextDelta | None:
    """Parses a published envelope; None if it is invalid: deltas may be lost, so the subscription continues."""
    try:
        said = decode_event(raw).fact.payload
    except InvalidInput:
        return None
    return TextDelta(said.block, said.at, said.text) if isinstance(said, ModelDelta) else None
