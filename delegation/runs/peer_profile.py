"""What is known of one peer: its configured terms, and its observed behaviour, per card.

Behaviour decides what an empty list proves. A list of tasks without ours proves that a message never arrived only at
a peer that keeps the context ids we mint, and that has never answered with a bare Message: a Message leaves no task
behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from passerelle.core.errors import StoreUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.ids import is_own_context
from passerelle.core.task.status import Status
from passerelle.core.wire.record import value
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.volume import OutputLimits
from passerelle.protocol.concurrency import keep_until_done

if TYPE_CHECKING:
    from passerelle.core.facts import Worker
    from passerelle.core.task.record import Attempt
    from passerelle.core.wire.json import JsonObject


_PROOF: Final = frozenset({"keeps_context"})
_MOST: Final = 4_096


@value
class PeerTerms:
    """The configured terms of a peer; the same object for every message until the configuration changes."""

    timeouts: Timeouts = Timeouts()
    """How long its messages may be on their way, and the peer unreachable."""
    policy: RetryPolicy = RetryPolicy()
    """The terms of an attempt."""
    tags: frozenset[str] = frozenset()
    """Tags that the operator chose."""
    acceptance: tuple[JsonObject, ...] = ()
    """Conditions of its tasks; a task keeps those that it was created with."""
    always_task: bool = False
    """Whether callers always get a Task, whatever it answers (LT-8)."""
    correlates: bool = False
    """Whether messages to it carry a key by which its tasks are found again."""
    await_approval: bool = False
    """Whether streams of messages to it stay open while an approval is pending."""
    connect_ms: int = 0
    """How long a message waits for an agent that dials in."""
    limits: OutputLimits = OutputLimits()
    """Limits of its output."""


Behaviour: TypeAlias = Literal["keeps_context", "replaces_context", "answers_with_messages"]
SeenBehaviour: TypeAlias = "tuple[Worker, Behaviour]"


class BehaviourStore(Protocol):
    """Stores observed behaviour beyond this process."""

    async def add(self, peer: str, card: str, habit: str) -> None:
        """Stores one observation."""
        ...

    async def read(self, peer: str, card: str) -> frozenset[str]:
        """All observations of a peer with a card."""
        ...


@dataclass(slots=True)
class PeerBehaviour:
    """Records behaviour apart from the runs: known behaviour costs one lookup in a set."""

    store: BehaviourStore
    _known: set[tuple[str, str, Behaviour]] = field(
        default_factory=set["tuple[str, str, Behaviour]"]
    )
    _writing: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def note(self, worker: Worker, habit: Behaviour) -> None:
        """Records an observation of a peer."""
        seen = (worker.peer, worker.card_hash or "", habit)
        if seen in self._known:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known.add(seen)
        keep_until_done(asyncio.create_task(self._store(seen)), self._writing)

    async def proves_absence(self, worker: Worker) -> bool:
        """Whether an empty list of this peer proves that nothing has arrived.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        card = worker.card_hash or ""
        stored = await self.store.read(worker.peer, card)
        here = {habit for peer, known, habit in self._known if (peer, known) == (worker.peer, card)}
        return stored | here == _PROOF

    async def drain(self) -> None:
        """Waits until pending observations are stored."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _store(self, seen: tuple[str, str, Behaviour]) -> None:
        try:
            await self.store.add(*seen)
        except StoreUnavailable:
            self._known.discard(seen)  # recorded again at the next observation


def read_behaviour(attempt: Attempt) -> SeenBehaviour | None:
    """The behaviour of a peer that the first answer to an attempt shows."""
    if attempt.remote_task_id is not None:
        kept = is_own_context(attempt.remote_context_id or "")
        return attempt.worker, "keeps_context" if kept else "replaces_context"
    if attempt.status is Status.COMPLETED:
        return attempt.worker, "answers_with_messages"
    return None
