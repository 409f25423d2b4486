"""Nudges: a hint channel for each instance, on which others tell it of runs that it drives.

It lies in a shard of the instance's name, so a cluster carries those of different instances on different nodes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import derive_shard
from passerelle.core.ports.nudges import Nudge
from passerelle.store import keys
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ids import Shard
    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes

_NOBODY: Final = "-"
_LINE: Final = re.compile(r"([wcg]) ([!-~]+) ([!-~]+)")
"""``w <task> <action, or ->``: look; ``c <task> -``: its agent has called back; ``g <task> -``: give way."""


class RedisNudges:
    """``core.ports.nudges.Nudges`` over a server or cluster."""

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
