"""Hints: one subscription connection per primary, for every channel that this process listens to.

After any error the connection is opened again with one SSUBSCRIBE per channel (a client library that puts several
channels in one command loses them all on a cluster), and ``on_loss`` callbacks are notified that hints may be lost.

A callback that raises does not affect the others: the fault is logged, and their hints continue.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, ParamSpec, cast

from redis.exceptions import RedisError

from passerelle.core.back_off import find_pause
from passerelle.core.errors import StoreUnavailable
from passerelle.protocol.concurrency import cancel_all
from passerelle.store.connection import RespWire, connect, make_connection, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Node, Nodes

P = ParamSpec("P")

_LOG: Final = logging.getLogger(__name__)
CONFIRM_S: Final = 5.0
_IDLE_S: Final = 15.0
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LAST_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Subscription:
    shard: Shard
    on_hint: Callable[[bytes], None]
    confirmed: asyncio.Future[None]


class RedisHints:
    """The channels of every shard that this process listens to; ``close`` ends it."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._subscriptions: dict[bytes, _Subscription] = {}
        self._wires: dict[Node, RespWire] = {}
        self._readers: dict[Node, asyncio.Task[None]] = {}
        self._on_loss: list[Callable[[], None]] = []
        self._awaited: dict[Node, set[bytes]] = {}
        self._ends: set[asyncio.Future[None]] = set()
        self._leaving: dict[Node, Counter[bytes]] = {}
        """Unsubscribes sent on the current connection and not confirmed yet."""
        self.faults = 0
        """Faults of callbacks and readers since the start."""
        nodes.on_move(self._disconnect_former)

    async def listen(self, shard: Shard, channel: str, on_hint: Callable[[bytes], None]) -> None:
        """Returns once the subscription to a channel of a shard is confirmed.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: the channel is subscribed already.
        """
        await self._subscribe(shard, channel.encode(), on_hint)

    async def ignore(self, shard: Shard, name: str) -> None:
        """Ends the hints of a channel."""
        channel = name.encode()
        if self._subscriptions.pop(channel, None) is not None:
            await self._unsubscribe(shard, channel)

    async def _unsubscribe(self, shard: Shard, channel: bytes) -> None:
        """Unsubscribes at the server, which otherwise keeps putting events into the hints of a followed channel."""
        node = self._nodes.node(shard)
        self._on_confirmed(node, channel)
        wire = self._wires.get(node)
        if wire is not None and wire.is_connected:
            self._leaving[node][channel] += 1
            # The reader of a broken connection connects again, without this channel.
            with suppress(RedisError, OSError):
                await wire.send_packed_command([pack("SUNSUBSCRIBE", channel)], check_health=False)

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Registers a callback for possibly lost hints: the connection was opened again."""
        self._on_loss.append(callback)

    async def close(self) -> None:
        """Ends all readers and connections."""
        readers = list(self._readers.values())
        self._readers.clear()
        await cancel_all(readers)
        self._subscriptions.clear()

    async def _subscribe(
        self, shard: Shard, channel: bytes, on_hint: Callable[[bytes], None]
    ) -> None:
        if channel in self._subscriptions:
            message = f"{channel.decode()} is subscribed already"
            raise ValueError(message)
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine = _Subscription(shard, on_hint, confirmed)
        self._subscriptions[channel] = mine
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._ask(self._nodes.node(shard), channel)
                await confirmed
        except BaseException as error:
            if self._subscriptions.get(channel) is mine:
                del self._subscriptions[channel]
                await self._unsubscribe(shard, channel)
            if isinstance(error, TimeoutError):
                reason = "a subscription was not confirmed"
                raise StoreUnavailable(reason, "no") from error
            raise

    async def _ask(self, node: Node, channel: bytes) -> None:
        if node not in self._readers:
            self._start_reader(node)
            return
        wire = self._wires.get(node)
        if wire is not None and wire.is_connected:
            try:
                await wire.send_packed_command([pack("SSUBSCRIBE", channel)], check_health=False)
            except (RedisError, OSError):
                # The reader connects again and subscribes to every channel.
                return

    def _start_reader(self, node: Node) -> None:
        reader = asyncio.create_task(self._follow(node), name="hints")
        self._readers[node] = reader
        reader.add_done_callback(lambda ended: self._on_reader_end(node, ended))

    def _on_reader_end(self, node: Node, ended: asyncio.Task[None]) -> None:
        """Restarts a reader that a fault has ended: without it no hint would arrive any more."""
        if ended.cancelled() or ended.exception() is None:
            return
        self.faults += 1
        _LOG.error("hints.reader_failed", exc_info=ended.exception())

        def start_again() -> None:
            if self._readers.get(node) is ended:
                self._start_reader(node)

        asyncio.get_running_loop().call_later(_PAUSE_LAST_S, start_again)

    async def _follow(self, node: Node) -> None:
        """Keeps one connection open for as long as this node serves a shard."""
        failures = 0
        while node in self._nodes.all:
            wire = make_connection(node.endpoint)
            try:
                await connect(wire)
                self._leaving[node] = Counter()
                # Set before the list is made: a subscription in between is requested on this connection.
                self._wires[node] = wire
                await self._subscribe_all(node, wire)
                failures = 0
                await self._read(node, wire)
            except (RedisError, OSError, TimeoutError):
                failures += 1
                await asyncio.sleep(find_pause(_PAUSE_FIRST_S, _PAUSE_LAST_S, failures))
            finally:
                self._wires.pop(node, None)
                await wire.disconnect(nowait=True)
            await self._refresh_nodes()
            await self._move_subscriptions(node)
        self._readers.pop(node, None)
        # The table may have changed while the channels were being moved.
        await self._move_subscriptions(node)

    async def _subscribe_all(self, node: Node, wire: RespWire) -> None:
        mine = {
            channel: subscription
            for channel, subscription in self._subscriptions.items()
            if self._nodes.node(subscription.shard) is node
        }
        self._awaited[node] = {
            channel for channel, subscription in mine.items() if subscription.confirmed.done()
        }
        for channel in mine:
            if channel not in self._subscriptions:
                continue
            await wire.send_packed_command([pack("SSUBSCRIBE", channel)], check_health=False)

    async def _read(self, node: Node, wire: RespWire) -> None:
        """Passes on messages until the connection ends; an idle connection is pinged."""
        asked = False
        while True:
            try:
                async with asyncio.timeout(_IDLE_S):
                    message = await wire.read_response(timeout=math.inf, disconnect_on_error=False)
            except TimeoutError:
                if asked:
                    raise
                asked = True
                await wire.send_packed_command([pack("PING")], check_health=False)
                continue
            asked = False
            if isinstance(message, list) and not self._take(node, cast("list[bytes]", message)):
                return

    def _take(self, node: Node, message: list[bytes]) -> bool:
        """False if the server ended a subscription that is still wanted."""
        subscription = self._subscriptions.get(message[1])
        match message[0]:
            case b"smessage" if subscription is not None:
                self._call_back(subscription.on_hint, message[2])
            case b"ssubscribe":
                if subscription is not None and not subscription.confirmed.done():
                    subscription.confirmed.set_result(None)
                self._on_confirmed(node, message[1])
            case b"sunsubscribe" if self._leaving[node][message[1]]:
                self._leaving[node][message[1]] -= 1
            case b"sunsubscribe":
                return subscription is None
            case _:
                pass
        return True

    def _on_confirmed(self, node: Node, channel: bytes) -> None:
        """Announces a loss after the last confirmation: an audit before it could miss hints in between."""
        awaited = self._awaited.get(node, set())
        if channel in awaited:
            awaited.discard(channel)
            if not awaited:
                for callback in self._on_loss:
                    self._call_back(callback)

    def _call_back(
        self, callback: Callable[P, None], *arguments: P.args, **named: P.kwargs
    ) -> None:
        """Calls a callback; what it raises is logged and counted."""
        try:
            callback(*arguments, **named)
        except Exception:  # noqa: BLE001  whatever it is, the hints of all others continue
            self.faults += 1
            _LOG.exception("hints.callback_failed")

    def _disconnect_former(self) -> None:
        """Disconnects former primaries: one that continues as a replica, or cut off, would be silent without error."""
        for node, wire in self._wires.items():
            if node not in self._nodes.all:
                end = asyncio.ensure_future(wire.disconnect(nowait=True))
                self._ends.add(end)
                end.add_done_callback(self._ends.discard)

    async def _refresh_nodes(self) -> None:
        if self._nodes.moves:
            with suppress(StoreUnavailable):
                await self._nodes.refresh_now()

    async def _move_subscriptions(self, node: Node) -> None:
        """Subscribes at their new node to channels of shards that this node no longer serves."""
        for channel, subscription in list(self._subscriptions.items()):
            home = self._nodes.node(subscription.shard)
            if home is not node:
                if subscription.confirmed.done():
                    self._awaited.setdefault(home, set()).add(channel)
                await self._ask(home, channel)
