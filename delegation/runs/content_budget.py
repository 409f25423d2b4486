"""What the runs of this process hold of their tasks, together: beyond a bound they grow one after another.

A driver keeps the content of its task until the run ends, up to the limits of outputs. Twenty runs of one caller may
bring twenty times that. So the contents of all runs have a bound, and those of one caller have half of it. Beyond it
the largest run that has more to read goes on, until it has ended or paused; the streams of the others are not read
meanwhile, and their agents wait. The largest one, since it ends next: by itself or at its limit. So what is held is at
most the bound and one task more, and nobody waits for ever.

What is small waits for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SMALL_BYTES: Final = 1024 * 1024
"""What a run may hold without being counted."""
DEFAULT_BYTES: Final = 128 * 1024 * 1024
"""Where nobody says anything else."""
_SHARES: Final = 2
PAUSE_S: Final = 10.0
"""A run that has the turn and has brought nothing for so long gives it to the next one."""


@dataclass(eq=False, slots=True)
class HeldContent:
    """The content of one run of ``owner``: ``size`` in bytes, zero while it is small."""

    owner: str
    size: int = 0
    grew_s: float = 0.0
    """When it grew last, or was given the turn, by the clock of the room."""


@dataclass(slots=True)
class ContentBudget:
    """The bound, with those who wait for their turn. ``clock`` is monotonic, in seconds."""

    total: int = DEFAULT_BYTES
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    held: int = 0
    _owners: dict[str, set[HeldContent]] = field(default_factory=dict[str, "set[HeldContent]"])
    _turns: dict[str, HeldContent] = field(default_factory=dict[str, "HeldContent"])
    """Who goes on beyond a bound, by owner; under the empty name beyond that of all."""
    _waiting: dict[HeldContent, asyncio.Event] = field(
        default_factory=dict["HeldContent", "asyncio.Event"]
    )

    @property
    def waiting(self) -> int:
        """How many runs wait."""
        return len(self._waiting)

    def grow(self, content: HeldContent, size: int) -> None:
        """The content has this size now; what has ended has none."""
        counted = size if size > SMALL_BYTES else 0
        self.held += counted - content.size
        content.size, content.grew_s = counted, self.clock()
        mine = self._owners.setdefault(content.owner, set())
        if counted:
            mine.add(content)
        else:
            mine.discard(content)
        if not mine:
            del self._owners[content.owner]
        if not counted:
            self._turns = {name: one for name, one in self._turns.items() if one is not content}
            self._wake()

    def may_grow(self, content: HeldContent) -> bool:
        """Whether more may be read of a run now."""
        if not content.size:
            return True
        mine = self._owners[content.owner]
        is_over_share = sum(one.size for one in mine) > self.total // _SHARES
        if is_over_share and not self._has_turn(content.owner, content, mine):
            return False
        return self.held <= self.total or self._has_turn("", content, self._waiting)

    async def wait(self, content: HeldContent) -> None:
        """Returns as soon as more may be read of a run."""
        while not self.may_grow(content):
            waits = self._waiting.setdefault(content, asyncio.Event())
            try:
                # Who has the turn may have paused: looked at again, though nobody has ended.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await waits.wait()
            finally:
                self._waiting.pop(content, None)

    def _has_turn(self, name: str, content: HeldContent, others: Iterable[HeldContent]) -> bool:
        """Whether it is the turn of ``content``; who has it keeps it as long as it grows."""
        now = self._turns.get(name)
        if now is not None and now is not content and self.clock() - now.grew_s < PAUSE_S:
            return False
        if now is not content:
            wanting = [one for one in others if one in self._waiting]
            if any(one.size > content.size for one in wanting):
                return False
            self._turns[name] = content
            content.grew_s = self.clock()
        return True

    def _wake(self) -> None:
        for waits in self._waiting.values():
            waits.set()
