"""What peers are known to do with what we send, per card: the ground on which an empty list proves something.

A list of tasks without ours proves that a message never arrived only at a peer that keeps the context ids we mint, and
that has never answered with a bare Message: a Message leaves no task behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import is_own_context
from passerelle.core.status import Status

if TYPE_CHECKING:
    from passerelle.core.facts import Worker
    from passerelle.core.task_record import Attempt

Habit: TypeAlias = Literal["keeps_context", "replaces_context", "answers_with_messages"]
Seen: TypeAlias = "tuple[Worker, Habit]"

_PROOF: Final = frozenset({"keeps_context"})
_MOST: Final = 4_096


class HabitStore(Protocol):
    """Where habits outlive this process."""

    async def add(self, peer: str, card: str, habit: str) -> None:
        """Stores one."""
        ...

    async def read(self, peer: str, card: str) -> frozenset[str]:
        """All of a peer with a card."""
        ...


@dataclass(slots=True)
class Habits:
    """Learns habits beside the runs: what is known already costs a look into a set."""

    store: HabitStore
    _known: set[tuple[str, str, Habit]] = field(default_factory=set["tuple[str, str, Habit]"])
    _writing: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def note(self, worker: Worker, habit: Habit) -> None:
        """A peer was seen to do something."""
        seen = (worker.peer, worker.card_hash or "", habit)
        if seen in self._known:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known.add(seen)
        writing = asyncio.create_task(self._store(seen))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def proves_absence(self, worker: Worker) -> bool:
        """Whether an empty list of this peer says that nothing has arrived.

        Raises:
            StoreUnavailable: nobody can tell now.
        """
        card = worker.card_hash or ""
        stored = await self.store.read(worker.peer, card)
        here = {habit for peer, known, habit in self._known if (peer, known) == (worker.peer, card)}
        return stored | here == _PROOF

    async def drain(self) -> None:
        """Lets what is being stored come to its end."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _store(self, seen: tuple[str, str, Habit]) -> None:
        try:
            await self.store.add(*seen)
        except StoreUnavailable:
            self._known.discard(seen)  # learned again at the next sight


def see_habit(attempt: Attempt) -> Seen | None:
    """What the first answer to an attempt says about its peer."""
    if attempt.remote_task_id is not None:
        kept = is_own_context(attempt.remote_context_id or "")
        return attempt.worker, "keeps_context" if kept else "replaces_context"
    if attempt.status is Status.COMPLETED:
        return attempt.worker, "answers_with_messages"
    return None
