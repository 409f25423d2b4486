"""Hints: one subscription connection per primary, for every stream that this process follows.

After any error the connection is made anew with one SSUBSCRIBE per channel (a client library that puts
several channels in one command loses them all on a cluster), and whoever asked hears that hints may be lost.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from redis.exceptions import RedisError

from passerelle.core.errors import StoreUnavailable
from passerelle.store import keys
from passerelle.store.connection import Wire, connect, make_connection, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import StreamRef
    from passerelle.store.nodes import Node, Nodes

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
    """``core.ports.log.Hints``; ``close`` ends it."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._subscriptions: dict[bytes, _Subscription] = {}
        self._wires: dict[Node, Wire] = {}
        self._readers: dict[Node, asyncio.Task[None]] = {}
        self._on_loss: list[Callable[[], None]] = []
        self._awaited: dict[Node, set[bytes]] = {}

    async def subscribe(self, stream: StreamRef, on_hint: Callable[[bytes], None]) -> None:
        """Returns once the subscription is confirmed.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: the stream is subscribed already.
        """
        await self.listen(stream.shard, keys.stream_hints(stream), on_hint)

    async def listen(self, shard: Shard, channel: str, on_hint: Callable[[bytes], None]) -> None:
        """The same for any channel of a shard."""
        await self._subscribe(shard, channel.encode(), on_hint)

    async def subscribe_shard(self, shard: Shard, on_hint: Callable[[bytes], None]) -> None:
        """The same for news of a shard: ``s <epoch>``."""
        await self._subscribe(shard, keys.shard_hints(shard).encode(), on_hint)

    async def unsubscribe(self, stream: StreamRef) -> None:
        """Ends the hints of a stream."""
        await self.ignore(stream.shard, keys.stream_hints(stream))

    async def ignore(self, shard: Shard, name: str) -> None:
        """Ends the hints of a channel."""
        channel = name.encode()
        subscription = self._subscriptions.pop(channel, None)
        node = self._nodes.node(shard)
        self._arrived(node, channel)
        wire = self._wires.get(node)
        if subscription is not None and wire is not None and wire.is_connected:
            try:
                await wire.send_packed_command([pack("SUNSUBSCRIBE", channel)], check_health=False)
            except (RedisError, OSError):
                # The reader of this connection sees the same end and connects anew, without this channel.
                return

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Calls back whenever hints may have been lost: the connection was made anew."""
        self._on_loss.append(callback)

    async def close(self) -> None:
        """Ends all readers and connections."""
        readers = list(self._readers.values())
        self._readers.clear()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        self._subscriptions.clear()

    async def _subscribe(
        self, shard: Shard, channel: bytes, on_hint: Callable[[bytes], None]
    ) -> None:
        if channel in self._subscriptions:
            message = f"{channel.decode()} is subscribed already"
            raise ValueError(message)
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._subscriptions[channel] = _Subscription(shard, on_hint, confirmed)
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._ask(self._nodes.node(shard), channel)
                await confirmed
        except TimeoutError as error:
            self._subscriptions.pop(channel, None)
            reason = "a subscription was not confirmed"
            raise StoreUnavailable(reason, "no") from error
        except BaseException:
            self._subscriptions.pop(channel, None)
            raise

    async def _ask(self, node: Node, channel: bytes) -> None:
        if node not in self._readers:
            self._readers[node] = asyncio.create_task(self._follow(node), name="hints")
            return
        wire = self._wires.get(node)
        if wire is not None and wire.is_connected:
            try:
                await wire.send_packed_command([pack("SSUBSCRIBE", channel)], check_health=False)
            except (RedisError, OSError):
                # The reader connects anew and asks for every channel.
                return

    async def _follow(self, node: Node) -> None:
        """Keeps one connection up for as long as this node serves a shard."""
        pause_s = _PAUSE_FIRST_S
        while node in self._nodes.all:
            wire = make_connection(node.endpoint)
            try:
                await connect(wire)
                # Known before the list is made: who subscribes in between asks on this connection.
                self._wires[node] = wire
                await self._subscribe_all(node, wire)
                pause_s = _PAUSE_FIRST_S
                await self._read(node, wire)
            except (RedisError, OSError, TimeoutError):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_LAST_S)
            finally:
                self._wires.pop(node, None)
                await wire.disconnect(nowait=True)
            await self._move_elsewhere(node)
        self._readers.pop(node, None)

    async def _subscribe_all(self, node: Node, wire: Wire) -> None:
        mine = {
            channel: subscription
            for channel, subscription in self._subscriptions.items()
            if self._nodes.node(subscription.shard) is node
        }
        self._awaited[node] = {
            channel for channel, subscription in mine.items() if subscription.confirmed.done()
        }
        for channel in mine:
            await wire.send_packed_command([pack("SSUBSCRIBE", channel)], check_health=False)

    async def _read(self, node: Node, wire: Wire) -> None:
        """Hands on messages until the connection ends; an idle one is asked whether it lives."""
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
        """False when the server ended a subscription that we still want."""
        subscription = self._subscriptions.get(message[1])
        match message[0]:
            case b"smessage" if subscription is not None:
                subscription.on_hint(message[2])
            case b"ssubscribe":
                if subscription is not None and not subscription.confirmed.done():
                    subscription.confirmed.set_result(None)
                self._arrived(node, message[1])
            case b"sunsubscribe":
                return subscription is None
            case _:
                pass
        return True

    def _arrived(self, node: Node, channel: bytes) -> None:
        """Announces a loss with the last confirmation: an audit before it could miss what came in between."""
        awaited = self._awaited.get(node, set())
        if channel in awaited:
            awaited.discard(channel)
            if not awaited:
                for callback in self._on_loss:
                    callback()

    async def _move_elsewhere(self, node: Node) -> None:
        """A slot may have moved: channels of other nodes' shards are asked for there."""
        if not self._nodes.clustered:
            return
        try:
            await self._nodes.refresh_now()
        except StoreUnavailable:
            return
        for channel, subscription in list(self._subscriptions.items()):
            home = self._nodes.node(subscription.shard)
            if home is not node:
                if subscription.confirmed.done():
                    self._awaited.setdefault(home, set()).add(channel)
                await self._ask(home, channel)
