"""How a message is to be sent: what is known before anything is stored, and the attempt that it becomes."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from passerelle.core.facts import RetryPolicy, Worker
from passerelle.core.payloads.task import TaskAttemptStarted, TaskDependencyUpdated
from passerelle.core.record import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.commands import SubmitTurn
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.payloads.approval import PermissionEvaluated
    from passerelle.core.payloads.limit import LimitPayload
    from passerelle.core.payloads.runtime import WarningRaised
    from passerelle.core.peer import PeerCard
    from passerelle.core.ports.chance import Ids
    from passerelle.core.task_record import ArtifactRef, TaskRecord
    from passerelle.core.trace import Trace


@value
class Delegation:
    """What is known of the peer before the first append."""

    card: PeerCard
    mechanism: Literal["unary", "streaming"]
    policy: RetryPolicy
    judge: Callable[[Ids, Shard], PermissionEvaluated]
    """How policy judges the call, under an id that is minted in a shard."""
    drives: Callable[[Shard], Incarnation]
    facts: tuple[LimitPayload | WarningRaised, ...] = ()
    """What is to be said on the turn beside it: its price, a quota that is low, a reference that is unknown."""
    sources: tuple[str, ...] = ()
    """Tasks that the message refers to."""
    source_runs: tuple[str, ...] = ()
    """The runs that produced what those tasks have."""
    consumed: tuple[ArtifactRef, ...] = ()
    """Artifacts of theirs whose parts go along."""
    acceptance: tuple[JsonObject, ...] = ()
    """What the task must bring."""
    trace: Trace | None = None
    """Our span in the caller's trace, if it has one."""
    extensions: tuple[str, ...] = ()
    """URIs of extensions that the caller asks for, for every call of the run."""
    demands: frozenset[str] = frozenset()
    """Those that the card requires and the gateway cannot activate in its own name."""
    shows_at_once: bool = False
    """Whether callers are shown the Task before the agent is called."""
    gated: bool = False
    """Whether anybody but the defaults has a say in what is sent."""
    ground: object = field(default_factory=object, compare=False)
    """The same one for all plans that differ in ``facts``, references, ``acceptance``, wishes and ``trace`` alone."""

    def list_edges(self) -> list[TaskDependencyUpdated]:
        """The edges to the tasks that the new one goes on from, and to what it takes from them (LT-13, GR-4, GR-8)."""
        edges = [
            TaskDependencyUpdated(f"source:{source}", "source_task", source, "satisfied")
            for source in self.sources
        ]
        edges += [
            TaskDependencyUpdated(f"source:{run}", "source_attempt", run, "satisfied")
            for run in self.source_runs
        ]
        edges += [
            TaskDependencyUpdated(
                f"consumed:{one.artifact_id}",
                "consumed_artifact",
                one.artifact_id,
                "satisfied",
                reason=f"version {one.version} of {one.run_id}",
            )
            for one in self.consumed
        ]
        return edges


def begin_attempt(
    record: TaskRecord, command: SubmitTurn, plan: Delegation, remote_context: str
) -> TaskAttemptStarted:
    """The intent to send the message of a turn, as the next attempt of its task."""
    card, trace = plan.card, plan.trace
    return TaskAttemptStarted(
        ordinal=len(record.attempts) + 1,
        worker=Worker("agent", command.agent, card.endpoint or None, card.sha256 or None),
        native_protocol=card.protocol,
        delivery_mechanism=plan.mechanism,
        message_id=str(command.message["messageId"]),
        retry_policy=plan.policy,
        reason="first",
        remote_context_id=remote_context,
        traceparent=trace.parent if trace else None,
        tracestate=trace.state if trace else None,
        extensions=plan.extensions,
        gated=plan.gated,
    )
