"""The blockers of a task: seven kinds, each with the id through which it is resolved (CF-8, SNAP-18).

=============  ==========================================  ==============================================
kind           missing                                     target
=============  ==========================================  ==============================================
``action``     an answer to an agent, a worker or a        the approval
               review
``credential`` an authorization that the agent asks for    the approval
``policy``     an approval that a rule or a hook requires  the approval; ``rules`` names the rules
               before anything is sent
``context``    the meaning of a name in the message:       the approval
               several artifacts have it
``dependency`` another task, a file, or an agent that is   the task, the artifact, ``agent:<name>``;
               full or has not resumed                     ``until`` is when the agent is tried again
``quota``      units of a quota of the owner               the quota; it resets at ``until``
``tool``       a tool; not used in this version
=============  ==========================================  ==============================================

Records have only the ids of open approvals; ``questions`` are those that were read. An approval that was not read
counts as an ``action``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from passerelle.core.approval.record import ActionRecord
from passerelle.core.payloads.approval import ApprovalRequest, PermissionEvaluated
from passerelle.core.payloads.task import BlockerKind
from passerelle.core.read_models.task import name_task
from passerelle.core.task.completion import find_unstored
from passerelle.core.task.record import TaskRecord, waits_for_quota
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.core.wire.record import record


@record
class AskedQuestion:
    """An approval of a task; ``rules`` are those that require it, if the gateway asks because of rules."""

    record: ActionRecord
    rules: tuple[str, ...] = ()


AskedQuestions: TypeAlias = Mapping[str, AskedQuestion]
"""Open approvals by id."""
_NONE: Final[AskedQuestions] = {}


@record
class Blocker:
    """One blocker. ``target`` is the id through which it is resolved, ``until`` an RFC 3339 time."""

    kind: BlockerKind
    target: str
    reason: str | None = None
    until: str | None = None
    rules: tuple[str, ...] = ()
    """The rules that require the approval, if known."""


@record
class BlockedTask:
    """A task that makes no progress until its blockers are resolved. ``actions`` are its open approvals."""

    task_id: str
    status: Status
    since: str
    blockers: tuple[Blocker, ...]
    actions: tuple[str, ...] = ()


def list_blocked(
    tasks: Iterable[TaskRecord], questions: AskedQuestions = _NONE
) -> tuple[BlockedTask, ...]:
    """The waiting tasks, in order."""
    return tuple(
        BlockedTask(name_task(task), task.status, task.status_at, blockers, task.open_actions)
        for task in tasks
        if (blockers := find_blockers(task, questions))
    )


def find_blockers(task: TaskRecord, questions: AskedQuestions = _NONE) -> tuple[Blocker, ...]:
    """The blockers of a task; empty if it has ended or makes progress."""
    if task.status in ENDED:
        return ()
    found = [
        _describe_approval(task, action, questions.get(action)) for action in task.open_actions
    ]
    found += [
        Blocker("dependency", edge.target, edge.reason) for edge in task.relationships if edge.holds
    ]
    if waits_for_quota(task) and task.queued is not None:
        queued = task.queued
        found.append(Blocker("quota", queued.queue, task.status_reason, queued.until))
    if not found and task.status in WAITING:
        found.append(_find_other(task))
    return tuple(found)


def _describe_approval(task: TaskRecord, action_id: str, question: AskedQuestion | None) -> Blocker:
    if question is None:
        return Blocker("action", action_id, task.status_reason)
    request = question.record.request
    return Blocker(classify(request), action_id, request.title, rules=question.rules)


def classify(request: ApprovalRequest) -> BlockerKind:
    """The kind of blocker of an open approval."""
    if request.kind == "auth":
        return "credential"
    if (request.origin.asked_by, request.origin.direction) == ("gateway", "outbound"):
        # The gateway asks before it sends: for permission, or for the meaning of a name in the message.
        return "policy" if request.action_type == "delegation" else "context"
    return "action"


def list_asking_rules(judged: PermissionEvaluated) -> tuple[str, ...]:
    """The rules of an evaluation that require an approval; other matching rules may allow."""
    asks = {one.ref for one in judged.trail if (one.source, one.verdict) == ("rule", "ask")}
    return tuple(one for one in judged.rules if one in asks)


def _find_other(task: TaskRecord) -> Blocker:
    """A wait without an approval and without another task: for a file, or for the agent."""
    if task.status is Status.WAITING_RESOURCE:
        retry_at = task.run.send_after if task.run else None
        unstored = find_unstored(task)
        if retry_at is None and unstored is not None:
            return Blocker("dependency", unstored.artifact_id, task.status_reason)
        return Blocker("dependency", _name_agent(task), task.status_reason, retry_at)
    if task.status is Status.BLOCKED:
        # The other task has completed, and this one is about to resume.
        satisfied = [edge.target for edge in task.relationships if edge.kind == "blocked_by"]
        return Blocker("dependency", (*satisfied, _name_agent(task))[0], task.status_reason)
    # Its approval was closed, so the status reason is outdated.
    return Blocker("dependency", _name_agent(task), "the agent has not gone on since")


def _name_agent(task: TaskRecord) -> str:
    return f"agent:{task.agent if task.peer is None else task.peer}"
