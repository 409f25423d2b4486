"""The memory that the runs of this process use for their tasks: beyond a bound they grow one after another.

A driver keeps the content of its task until the run ends, up to the limits of outputs. Twenty runs of one caller may
bring twenty times that. So the contents of all runs share a bound, and those of one caller half of it. Beyond it only
the largest run that has more to read continues, until it ends or pauses; the streams of the others are not read
meanwhile, and their agents wait. The largest one, since it ends next: by itself or at its limit. So memory use is at
most the bound and one task more, and no run waits for ever.

Small contents never wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SMALL_BYTES: Final = 1024 * 1024
"""The content of a run up to this size is not counted."""
DEFAULT_BYTES: Final = 128 * 1024 * 1024
"""The bound without a setting."""
_SHARES: Final = 2
PAUSE_S: Final = 10.0
"""A run that has the turn and has brought nothing for this long passes it on."""


@dataclass(eq=False, slots=True)
class HeldContent:
    """The content of one run of ``owner``: ``size`` in bytes, zero while it is small."""

    owner: str
    size: int = 0
    grew_s: float = 0.0
    """When it last grew, or got the turn, by the clock of the budget."""


@dataclass(slots=True)
class ContentBudget:
    """The bound, and the runs that wait for their turn. ``clock`` is monotonic, in seconds."""

    total: int = DEFAULT_BYTES
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    held: int = 0
    _owners: dict[str, set[HeldContent]] = field(default_factory=dict[str, "set[HeldContent]"])
    _turns: dict[str, HeldContent] = field(default_factory=dict[str, "HeldContent"])
    """The run that continues beyond a bound, by owner; under the empty name, beyond the bound for all."""
    _waiting: dict[HeldContent, asyncio.Event] = field(
        default_factory=dict["HeldContent", "asyncio.Event"]
    )

    @property
    def waiting(self) -> int:
        """The number of waiting runs."""
        return len(self._waiting)

    def grow(self, content: HeldContent, size: int) -> None:
        """Sets the present size of a content; zero for a run that has ended."""
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
        """Whether more of a run's stream may be read now."""
        if not content.size:
            return True
        mine = self._owners[content.owner]
        is_over_share = sum(one.size for one in mine) > self.total // _SHARES
        if is_over_share and not self._has_turn(content.owner, content, mine):
            return False
        return self.held <= self.total or self._has_turn("", content, self._waiting)

    async def wait(self, content: HeldContent) -> None:
        """Returns as soon as more of a run's stream may be read."""
        while not self.may_grow(content):
            waits = self._waiting.setdefault(content, asyncio.Event())
            try:
                # The run with the turn may have paused: checked again without a wake-up.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await waits.wait()
            finally:
                self._waiting.pop(content, None)

    def _has_turn(self, name: str, content: HeldContent, others: Iterable[HeldContent]) -> bool:
        """Whether ``content`` has the turn; a run keeps it as long as it grows."""
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
