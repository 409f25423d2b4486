"""What a task waits for: one of seven kinds of blocker, and the id through which it is resolved (CF-8, SNAP-18).

=============  ==========================================  ==============================================
kind           what is missing                             target
=============  ==========================================  ==============================================
``action``     an answer: the agent, a worker or a review  the question
               asks a person
``credential`` an authorization that the agent asks for    the question
``policy``     the approval that a rule or a hook wants    the question; ``rules`` names the rules
               before anything is sent
``context``    what the message means: several artifacts   the question
               have the name that it names
``dependency`` another task, a file, or an agent that      the task, the artifact, ``agent:<name>``;
               takes no more work or has not gone on       ``until`` is when the agent is tried again
``quota``      what a quota of the owner covers            the quota; it resets at ``until``
``tool``       a tool; nothing waits for one in this
               version
=============  ==========================================  ==============================================

Records have the ids of open questions and no more; ``questions`` are these as far as they were read. A question that
was not read counts as an ``action``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from passerelle.core.approval.record import ActionRecord
from passerelle.core.payloads.approval import ApprovalRequest, PermissionEvaluated
from passerelle.core.payloads.task import BlockerKind
from passerelle.core.read_models.task import name_task
from passerelle.core.task.machine import find_unstored
from passerelle.core.task.record import TaskRecord, waits_for_quota
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.core.wire.record import record


@record
class AskedQuestion:
    """A question of a task; ``rules`` are those that want it asked, where the gateway asks because of them."""

    record: ActionRecord
    rules: tuple[str, ...] = ()


AskedQuestions: TypeAlias = Mapping[str, AskedQuestion]
"""Open questions by their ids."""
_NONE: Final[AskedQuestions] = {}


@record
class Blocker:
    """What stands in the way. ``target`` is the id through which it is resolved, ``until`` an RFC 3339 time."""

    kind: BlockerKind
    target: str
    reason: str | None = None
    until: str | None = None
    rules: tuple[str, ...] = ()
    """The rules that want the approval, where it is known which ones do."""


@record
class BlockedTask:
    """A task that makes no progress until its blockers are gone. ``actions`` are the questions to be answered."""

    task_id: str
    status: Status
    since: str
    blockers: tuple[Blocker, ...]
    actions: tuple[str, ...] = ()


def list_blocked(
    tasks: Iterable[TaskRecord], questions: AskedQuestions = _NONE
) -> tuple[BlockedTask, ...]:
    """The tasks that wait, in their order."""
    return tuple(
        BlockedTask(name_task(task), task.status, task.status_at, blockers, task.open_actions)
        for task in tasks
        if (blockers := find_blockers(task, questions))
    )


def find_blockers(task: TaskRecord, questions: AskedQuestions = _NONE) -> tuple[Blocker, ...]:
    """What a task waits for; nothing where it has ended or goes on by itself."""
    if task.status in ENDED:
        return ()
    found = [_tell_question(task, action, questions.get(action)) for action in task.open_actions]
    found += [
        Blocker("dependency", edge.target, edge.reason) for edge in task.relationships if edge.holds
    ]
    if waits_for_quota(task) and task.queued is not None:
        queued = task.queued
        found.append(Blocker("quota", queued.queue, task.status_reason, queued.until))
    if not found and task.status in WAITING:
        found.append(_find_other(task))
    return tuple(found)


def _tell_question(task: TaskRecord, action_id: str, question: AskedQuestion | None) -> Blocker:
    if question is None:
        return Blocker("action", action_id, task.status_reason)
    request = question.record.request
    return Blocker(classify(request), action_id, request.title, rules=question.rules)


def classify(request: ApprovalRequest) -> BlockerKind:
    """Which kind of blocker an open question is."""
    if request.kind == "auth":
        return "credential"
    if (request.origin.asked_by, request.origin.direction) == ("gateway", "outbound"):
        # What the gateway asks before it sends: leave for the message, or what a name in it means.
        return "policy" if request.action_type == "delegation" else "context"
    return "action"


def list_asking_rules(judged: PermissionEvaluated) -> tuple[str, ...]:
    """The rules of a judgement that want somebody asked; others that hold may allow."""
    asks = {one.ref for one in judged.trail if (one.source, one.verdict) == ("rule", "ask")}
    return tuple(one for one in judged.rules if one in asks)


def _find_other(task: TaskRecord) -> Blocker:
    """A wait without a question and without another task: for a file, or for the agent."""
    if task.status is Status.WAITING_RESOURCE:
        retry_at = task.run.send_after if task.run else None
        unstored = find_unstored(task)
        if retry_at is None and unstored is not None:
            return Blocker("dependency", unstored.artifact_id, task.status_reason)
        return Blocker("dependency", _name_agent(task), task.status_reason, retry_at)
    if task.status is Status.BLOCKED:
        # The other task has completed, and this one is about to go on.
        satisfied = [edge.target for edge in task.relationships if edge.kind == "blocked_by"]
        return Blocker("dependency", (*satisfied, _name_agent(task))[0], task.status_reason)
    # Its question was closed; what the status says of it is over.
    return Blocker("dependency", _name_agent(task), "the agent has not gone on since")


def _name_agent(task: TaskRecord) -> str:
    return f"agent:{task.agent if task.peer is None else task.peer}"
