"""Why an attempt waits, for its agent, its context, another task or a quota, as text for people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, assert_never

from passerelle.a2a_mapping.frames import note_status
from passerelle.a2a_mapping.states import SUBMITTED, WORKING
from passerelle.core.agent_name import find_base
from passerelle.core.task.commands import QueueTask
from passerelle.core.wire.record import record, value

if TYPE_CHECKING:
    from passerelle.core.payloads.task import QueueCause, TaskAttemptStarted
    from passerelle.core.wire.json import JsonObject

QUEUED: Final = "queued"
"""The kind of the due row of a task that waits in a queue."""
UNFORESEEN: Final[frozenset[QueueCause]] = frozenset({"paused", "draining", "after", "quota"})
"""Waits of unknown length, or of days: callers are notified at once, and their calls return."""
MOST_WAITING: Final = 100
"""Turns that may wait in one context."""
INTERRUPTS: Final = "interrupts"
"""The field of a waiting task that has to stop the running turns of its context; dropped once that is done."""
FIRST_LOOK_MS: Final = 5_000
"""When the due row comes first, unless it is postponed; the queue itself is faster."""
LONGEST_LOOK_MS: Final = 120_000
"""Longest pause between two checks of a waiting task that nothing else has found."""
_FIRST_REST_MS: Final = LONGEST_LOOK_MS
"""First pause for a task in the queue of a paused agent."""
LONGEST_REST_MS: Final = 600_000
"""Longest pause for a paused agent, or a very long queue."""
_LINE_MS: Final = 30
"""Pause per waiting task: a queue costs a bounded number of checks, however long it is."""
_REST_SHARE: Final = 4
"""With a paused agent, a task is checked again after this many times the time it has waited."""


@record
class InterruptRequest:
    """The turns that were running when a message came that interrupts them."""

    turns: tuple[str, ...] = ()


@value
class QueueHold:
    """An attempt that does not begin yet. ``position`` counts from 1; None: it is not shown."""

    agent: str
    cause: QueueCause
    position: int | None
    reason: str | None = None
    """The operator's reason, the task that comes first, or the name of the quota that is used up."""
    send_options: JsonObject | None = None
    """The options of the request without its message."""
    thread_id: str | None = None
    """The context whose earlier turns come first."""
    answers_at_once: bool = False
    """Whether the caller wants the Task at once."""
    caller: str | None = None
    """The owner of the quota."""
    until: str | None = None
    """When the quota resets, RFC 3339."""
    is_behind: bool = False
    """Whether other messages of the same caller wait before it, and the quota may have reset since."""
    unpaid: Literal[True] | None = None
    """Set if no quota was charged with it yet."""

    @property
    def queue(self) -> str:
        """The name of the queue."""
        if self.cause == "quota":
            return f"quota:{self.caller}"
        if self.thread_id is not None:
            return f"thread:{self.thread_id}"
        return f"agent:{find_base(self.agent)}"

    @property
    def notifies_caller(self) -> bool:
        """Whether callers are notified at once."""
        return self.answers_at_once or self.cause in UNFORESEEN

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        name = repr(find_base(self.agent))
        why = f" ({self.reason})" if self.reason else ""
        match self.cause:
            case "paused":
                text = f"agent {name} is paused{why}; the message is sent when it is resumed"
            case "draining":
                text = (
                    f"agent {name} takes no new work{why}; the message is sent when it is resumed"
                )
            case "capacity":
                text = f"agent {name} has as much work as its limits allow"
            case "turn":
                text = "another message of this context is in progress"
            case "after":
                return f"the message is sent when {self.reason}, and can be cancelled"
            case "quota":
                return self._explain_quota()
            case _:
                assert_never(self.cause)
        return f"{text}; {_name_place(self.position or 1)}, and can be cancelled"

    @property
    def state(self) -> str:
        """The state that callers see meanwhile: for A2A, a task that waits for a resource is working."""
        return WORKING if self.cause == "quota" else SUBMITTED

    def describe(self) -> JsonObject:
        """The metadata of the status, for programs."""
        if self.cause != "quota":
            return note_status(f"agent_{self.cause}", peer=self.agent)
        return note_status("caller_quota", peer=self.agent, until=self.until or "")

    def _explain_quota(self) -> str:
        text = f"{self.reason} is used up; the message is sent when it resets at {self.until}"
        if self.is_behind:
            text = f"it is queued behind other messages of its caller that wait for {self.reason}"
        place = "" if self.position is None else f"; {_name_place(self.position)}"
        return f"{text}{place}, and can be cancelled"


def find_look_ms(waited_ms: int, waiting: int = 0, *, is_paused: bool) -> int:
    """How long, in ms, until a queued task is checked again; ``waiting`` is the length of its queue.

    Nothing takes a task out of the queue of a paused agent, so none can be lost before it begins.
    """
    wanted, longest = waited_ms, min(max(LONGEST_LOOK_MS, waiting * _LINE_MS), LONGEST_REST_MS)
    if is_paused:
        wanted, longest = max(waited_ms * _REST_SHARE, _FIRST_REST_MS), LONGEST_REST_MS
    return min(max(wanted, FIRST_LOOK_MS), longest)


def make_command(attempt: TaskAttemptStarted, hold: QueueHold) -> QueueTask:
    """The command that queues a task."""
    return QueueTask(
        hold.queue,
        hold.text,
        hold.position,
        hold.cause,
        attempt,
        hold.send_options,
        until=hold.until,
        unpaid=hold.unpaid,
    )


def _name_place(position: int) -> str:
    ahead = position - 1
    if not ahead:
        return "it is the next one"
    return f"{ahead} {'waits' if ahead == 1 else 'wait'} before it"
