"""Why an attempt waits, for its agent, its context, another task or a quota, in the words that people read. Pure."""

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
"""The kind of the due row of a task that waits there."""
UNFORESEEN: Final[frozenset[QueueCause]] = frozenset({"paused", "draining", "after", "quota"})
"""Nobody knows when a wait of these ends, or it may be days: callers learn of it at once, and are not kept waiting."""
MOST_WAITING: Final = 100
"""Turns that wait in one context."""
INTERRUPTS: Final = "interrupts"
"""The field of a task that waits and is to stop what goes on in its context; it is dropped once that is done."""
FIRST_LOOK_MS: Final = 5_000
"""When that row comes first, unless it is put off; the queue itself is faster."""
LONGEST_LOOK_MS: Final = 120_000
"""The longest time between two looks at a task that waits, where nothing else has found it."""
_FIRST_REST_MS: Final = LONGEST_LOOK_MS
"""How long one is left alone that has come into the line of an agent that is paused."""
LONGEST_REST_MS: Final = 600_000
"""The same where its agent is paused, or very many wait."""
_LINE_MS: Final = 30
"""For each one that waits: a line costs no more than so many looks, however long it is."""
_REST_SHARE: Final = 4
"""How many times as long as it has waited a task is left alone whose agent is paused."""


@record
class InterruptRequest:
    """The turns that were under way when a message came that is to stop them."""

    turns: tuple[str, ...] = ()


@value
class QueueHold:
    """An attempt that does not begin yet. ``position`` counts from 1; None: it is not told."""

    agent: str
    cause: QueueCause
    position: int | None
    reason: str | None = None
    """What the operator has said of it, what has to come first, or the quota that is used up."""
    send_options: JsonObject | None = None
    """What the request says beside its message."""
    thread_id: str | None = None
    """The context whose turns go first."""
    answers_at_once: bool = False
    """Whether the caller wants the Task before anything comes of it."""
    caller: str | None = None
    """Whose quota it is."""
    until: str | None = None
    """When that resets, RFC 3339."""
    is_behind: bool = False
    """Whether others of the same caller wait for it already, and it may be that it is not used up any more."""
    unpaid: Literal[True] | None = None
    """No quota was charged with it yet."""

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
        """Whether callers learn of it at once."""
        return self.answers_at_once or self.cause in UNFORESEEN

    @property
    def text(self) -> str:
        """The sentence."""
        name = repr(find_base(self.agent))
        why = f" ({self.reason})" if self.reason else ""
        match self.cause:
            case "paused":
                said = f"agent {name} is paused{why}; the message is sent when it is resumed"
            case "draining":
                said = (
                    f"agent {name} takes no new work{why}; the message is sent when it is resumed"
                )
            case "capacity":
                said = f"agent {name} has as much work as its limits allow"
            case "turn":
                said = "another message of this context is worked at"
            case "after":
                return f"the message is sent when {self.reason}, and can be cancelled"
            case "quota":
                return self._explain_quota()
            case _:
                assert_never(self.cause)
        return f"{said}; {_name_place(self.position or 1)}, and can be cancelled"

    @property
    def state(self) -> str:
        """The state that callers see meanwhile: a task that waits for a resource works, as far as A2A can say."""
        return WORKING if self.cause == "quota" else SUBMITTED

    def describe(self) -> JsonObject:
        """The same for programs: what stands in the metadata of the status."""
        if self.cause != "quota":
            return note_status(f"agent_{self.cause}", peer=self.agent)
        return note_status("caller_quota", peer=self.agent, until=self.until or "")

    def _explain_quota(self) -> str:
        said = f"{self.reason} is used up; the message is sent when it resets at {self.until}"
        if self.is_behind:
            said = f"it goes after others of its caller that wait for {self.reason}"
        place = "" if self.position is None else f"; {_name_place(self.position)}"
        return f"{said}{place}, and can be cancelled"


def find_look_ms(waited_ms: int, waiting: int = 0, *, is_paused: bool) -> int:
    """How long a task that is in line is left alone, which has waited so long; ``waiting`` is how many are in line.

    Nobody takes a task out of the line of an agent that is paused, so none can be lost on the way to its begin.
    """
    wanted, longest = waited_ms, min(max(LONGEST_LOOK_MS, waiting * _LINE_MS), LONGEST_REST_MS)
    if is_paused:
        wanted, longest = max(waited_ms * _REST_SHARE, _FIRST_REST_MS), LONGEST_REST_MS
    return min(max(wanted, FIRST_LOOK_MS), longest)


def make_command(attempt: TaskAttemptStarted, hold: QueueHold) -> QueueTask:
    """What a task is told that waits."""
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
