"""A run has ended badly: what becomes of its task is decided here, in the same append, whatever ended the run.

Pure. The peer said so (``observe``), did not take the message, or cannot be reached any more (``endings``): all of them
come through ``end_run``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.states import FAILED
from passerelle.core.status import Status
from passerelle.core.task_commands import FailRun, FailTask

if TYPE_CHECKING:
    from passerelle.core.facts import Failure
    from passerelle.core.json import JsonObject
    from passerelle.gateway.delegation.step import Step


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. ``status`` is the run's: failed or lost.

    ``native`` is the peer's own word for it, and ``frame`` its last frame as our callers read it, where it said one.
    """

    failure: Failure
    status: Status = Status.FAILED
    native: str | None = None
    rejected: bool = False
    frame: JsonObject | None = None


def end_run(step: Step, ended: Ended) -> None:
    """The run is over; with nothing left to try its task has failed as well."""
    step.add(step.tell(FailRun(ended.status, ended.failure, ended.native)))
    facts = step.tell(FailTask(ended.failure, ended.rejected))
    if ended.frame is None:
        step.end_with(facts, FAILED, ended.failure.message)
        return
    step.add_shown(facts, ended.frame)
    step.end_turn("task")
