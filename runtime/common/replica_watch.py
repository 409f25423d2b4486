"""Checks every few seconds the store's primaries: whether they changed, have replicas, and can lose writes."""

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
"""A primary must be seen before it fails, or the server promoted in its place is not recognized as promoted."""
_FAST_ROUND_S: Final = 1.0
"""The interval while calls wait for a replica."""


@dataclass(slots=True)
class ReplicaWatch:
    """Keeps ``replicas`` current, and logs when acts start and stop being sent without a replica."""

    replicas: RedisReplicas
    log: FilteringBoundLogger
    after: Callable[[], None] = lambda: None
    """Called after each check."""
    needs_fast_rounds: Callable[[], bool] = lambda: False
    """Whether values of the check are changing fast."""
    round_s: float = ROUND_S
    _logged: tuple[str, ...] = ()

    def watch(self) -> AbstractAsyncContextManager[None]:
        """Checks until the end of the block."""
        return HintFollower("replicas", self._look, None, self.log, self._find_round_s).repeat()

    def _find_round_s(self) -> float:
        is_fast = self.replicas.are_missing or self.needs_fast_rounds()
        return min(_FAST_ROUND_S, self.round_s) if is_fast else self.round_s

    async def _look(self) -> None:
        # If the store is unavailable, calls that wait for a replica keep waiting.
        await self.replicas.look()
        self._log_change(self.replicas.alone)
        self.after()

    def _log_change(self, alone: tuple[str, ...]) -> None:
        if alone == self._logged:
            return
        self._logged = alone
        if alone:
            self.log.warning(
                "replicas.none_after_promotion",
                primaries=alone,
                effect="messages and webhooks are sent although no replica has the writes before them",
            )
        else:
            self.log.info("replicas.waited_for_again")


def describe_replicas(replicas: RedisReplicas) -> str | None:
    """The replica message for ``/readyz``; None: no problem."""
    if replicas.are_missing:
        return "no replica confirms writes; messages and webhooks wait"
    if replicas.alone:
        return (
            f"{', '.join(replicas.alone)} was promoted and has no replica; "
            "its writes are lost in another failover"
        )
    return None


@dataclass(slots=True)
class DurabilityWatch:
    """Checks the settings of all primaries by their last reports (``RedisReplicas.look``)."""

    replicas: RedisReplicas
    log: FilteringBoundLogger
    _logged: tuple[str, ...] = ()

    def look(self) -> None:
        """Logs each change of the risks, and their end."""
        risks = self.replicas.loss_risks
        if risks == self._logged:
            return
        self._logged = risks
        if risks:
            self.log.error("store.at_risk", reasons=risks)
        else:
            self.log.info("store.not_at_risk")


def describe_risks(replicas: RedisReplicas) -> str | None:
    """The message for ``/readyz``; None: no setting can lose acknowledged writes."""
    return "; ".join(replicas.loss_risks) or None
