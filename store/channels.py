"""Records of device links, in the shard of their principal."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import place
from passerelle.core.ports.channels import DevicesChanged, Greeted, PresenceMoved, SaidHello
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.coalescer import Coalescer
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_int, as_sparse_list, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.ports.channels import LinkNews
    from passerelle.store.connection import Reply
    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes

_HELLO_HINT: Final = re.compile(rb"^g ([!-~]+) ([0-9]+)$", re.MULTILINE)
"""Those who came together are told in one message, a line each."""
_PRESENCE: Final = b"p"
_DEVICES: Final = b"d"
KEEP_MS: Final = 30 * 24 * 3600 * 1000
REMEMBERED: Final = 64
"""Links of one principal that are found again without their names, the newest ones."""


def _read_greetings(reply: Reply) -> list[Greeted]:
    match cast("list[bytes | int]", reply):
        case [b"ok", questions, *generations]:
            return [Greeted(int(generation), questions != 0) for generation in generations]
        case _:
            reason = "this instance holds no lease in the shard"
            raise StoreUnavailable(reason, "no")


_HELLO: Final = Script("hello", _read_greetings)
_KEEP_LINK: Final = Script("keep_link", as_int)


class RedisChannels:
    """``core.ports.channels.Channels`` over a server or cluster."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints
        self._hellos: Coalescer[tuple[str, Incarnation | None], tuple[str, bytes], Greeted] = (
            Coalescer(self._say_hellos)
        )

    async def listen(self, owner: str, on_news: Callable[[LinkNews], None]) -> None:
        """Returns once news of the owner's devices are told, from now on.

        Raises:
            StoreUnavailable: not confirmed in time; nothing is told then.
        """
        shard = place(owner)

        def take(raw: bytes) -> None:
            if raw == _PRESENCE:
                on_news(PresenceMoved())
            elif raw == _DEVICES:
                on_news(DevicesChanged())
            for said in _HELLO_HINT.finditer(raw):
                on_news(SaidHello(said[1].decode(), int(said[2])))

        await self._hints.listen(shard, keys.link_hints(shard, owner), take)

    async def ignore(self, owner: str) -> None:
        """Ends what ``listen`` began."""
        shard = place(owner)
        await self._hints.ignore(shard, keys.link_hints(shard, owner))

    async def tell_devices(self, owner: str) -> None:
        """Tells all who listen that the devices of the owner have changed.

        Raises:
            StoreUnavailable: whether anybody was told is not known.
        """
        shard = place(owner)
        command = pack("SPUBLISH", keys.link_hints(shard, owner), _DEVICES)
        await self._nodes.update(shard, command)

    def say_hello(
        self, owner: str, channel: str, record: bytes, driver: Incarnation | None
    ) -> Awaitable[Greeted]:
        """Writes the record, makes the owner's inbox if there is none, counts the generation up.

        Tried again after a lost reply: a generation that nobody used does no harm.

        Raises:
            StoreUnavailable: also when ``driver`` holds no lease in the owner's shard.
            ValueError: the channel does not live in the owner's shard.
        """
        shard = place(owner)
        if place(channel) != shard:
            message = f"channel {channel} is not in the shard of {owner}"
            raise ValueError(message)
        return self._hellos.call((owner, driver), (channel, record))

    def _say_hellos(
        self, said: tuple[str, Incarnation | None], hellos: list[tuple[str, bytes]]
    ) -> Awaitable[list[Greeted]]:
        owner, driver = said
        shard = place(owner)
        inbox = StreamRef(StreamKind.INBOX, owner)
        names = [keys.head(inbox), keys.link_hints(shard, owner), keys.links(shard, owner)]
        names.append(keys.inbox_open(shard, owner))
        names += [keys.channel(shard, channel) for channel, _ in hellos]
        if driver is not None:
            names += [keys.due(shard), keys.own(shard, driver.instance)]
        return self._nodes.run_unbatched(
            _HELLO,
            shard,
            names,
            {
                "channels": [channel for channel, _ in hellos],
                "mint": secrets.token_hex(4),
                "keep": str(KEEP_MS),
                "links": REMEMBERED,
                "driver": [driver.instance, str(driver.number)] if driver else False,
            },
            [record for _, record in hellos],
        )

    async def keep(self, channel: str, generation: int, driver: Incarnation | None) -> int:
        """Says that a link is still open, and returns the newest generation of its channel."""
        shard = place(channel)
        names = [keys.channel(shard, channel)]
        if driver is not None:
            names += [keys.own(shard, driver.instance), keys.due(shard)]
        return await self._nodes.run(
            _KEEP_LINK,
            shard,
            names,
            {
                "channel": channel,
                "gen": str(generation),
                "keep": str(KEEP_MS),
                "instance": driver.instance if driver else "",
                "inc": str(driver.number) if driver else "",
            },
        )

    async def read_generation(self, channel: str) -> int:
        """The newest generation of a channel; 0 when there is none."""
        shard = place(channel)
        command = pack("HGET", keys.channel(shard, channel), "gen")
        return await self._nodes.query(shard, command, as_int)

    async def list_live(self, owner: str) -> tuple[bytes, ...]:
        """The records of a principal's links that are open, of those that were opened last.

        Raises:
            StoreUnavailable: nobody knows.
        """
        shard = place(owner)
        newest = pack("ZRANGE", keys.links(shard, owner), "0", str(REMEMBERED - 1), "REV")
        names = await self._nodes.query(shard, newest, as_texts)
        if not names:
            return ()
        looks = [pack("HMGET", keys.channel(shard, name), "live", "s") for name in names]
        rows = map(as_sparse_list, await self._nodes.query_all(shard, *looks))
        return tuple(record for live, record in rows if live == b"1" and record is not None)

    async def is_live(self, channel: str) -> bool:
        """Whether a connection of the channel is open, as far as anybody has told."""
        shard = place(channel)
        command = pack("HGET", keys.channel(shard, channel), "live")
        return await self._nodes.query(shard, command, as_bytes) == b"1"

    async def read_record(self, channel: str) -> bytes | None:
        """The record that the last hello wrote."""
        shard = place(channel)
        command = pack("HGET", keys.channel(shard, channel), "s")
        return await self._nodes.query(shard, command, as_bytes)
