"""Looks every few seconds whether the primaries of the store are those of before, and whether they have replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.runtime.common.refresh import HintFollower

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from structlog.typing import FilteringBoundLogger

    from passerelle.store.replicas import RedisReplicas

ROUND_S: Final = 5.0
"""A primary has to be seen before it is lost, or what is promoted in its place is not known for that."""
_FAST_ROUND_S: Final = 1.0
"""While something waits."""


@dataclass(slots=True)
class ReplicaWatch:
    """Keeps ``replicas`` fresh, and says when acts begin and cease to go on without one."""

    replicas: RedisReplicas
    log: FilteringBoundLogger
    after: Callable[[], None] = lambda: None
    """Called after each look."""
    needs_fast_rounds: Callable[[], bool] = lambda: False
    """Whether what a look tells changes fast."""
    round_s: float = ROUND_S
    _told: tuple[str, ...] = ()

    def watch(self) -> AbstractAsyncContextManager[None]:
        """Looks until the end of the block."""
        return HintFollower("replicas", self._look, None, self.log, self._find_round_s).repeat()

    def _find_round_s(self) -> float:
        is_fast = self.replicas.are_missing or self.needs_fast_rounds()
        return min(_FAST_ROUND_S, self.round_s) if is_fast else self.round_s

    async def _look(self) -> None:
        # Where the store is away, who waits for a replica goes on waiting.
        await self.replicas.look()
        self._tell(self.replicas.alone)
        self.after()

    def _tell(self, alone: tuple[str, ...]) -> None:
        if alone == self._told:
            return
        self._told = alone
        if alone:
            self.log.warning(
                "replicas.none_after_promotion",
                primaries=alone,
                effect="messages and webhooks are sent although no replica has what stands before them",
            )
        else:
            self.log.info("replicas.waited_for_again")


def describe_replicas(replicas: RedisReplicas) -> str | None:
    """What ``/readyz`` says of the replicas; None: nothing is wrong."""
    if replicas.are_missing:
        return "none confirms; what would be sent waits"
    if replicas.alone:
        return (
            f"{', '.join(replicas.alone)} was promoted and has no replica; "
            "what is sent is lost in a further failover"
        )
    return None
