"""Commands and queries of the gateway: the closed unions behind A2A, ``/v1``, channels and the command line.

An edge translates into one of these and nothing else (CMD-27). A command may change something; a query never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeAlias

from pydantic import Field

from passerelle.core.approval.requests import GetAudit, MuteMinutes
from passerelle.core.evidence.requests import BundleExported, ExportBundle, GetBundle
from passerelle.core.frozen import frozen
from passerelle.core.job.requests import JobChanged, JobQuery, JobRequest
from passerelle.core.oversight_requests import AgentChanged, AgentRequest, OversightQuery
from passerelle.core.payloads.approval import ActionKind, ApprovalDecision, ListedState, Risk
from passerelle.core.payloads.conversation import QueuePolicy
from passerelle.core.policy.requests import PolicyAnswer, PolicyQuery, PolicyRequest
from passerelle.core.schedule.requests import ScheduleChanged, ScheduleQuery, ScheduleRequest
from passerelle.core.session.device_requests import (
    DeviceAnswer,
    DeviceQuery,
    DeviceRequest,
    GetChannels,
    LinkAnswer,
    LinkRequest,
)
from passerelle.core.session.requests import (
    ListSessions,
    SessionChanged,
    SessionRequest,
    ThreadCompacted,
    ThreadResumed,
    ThreadRolledBack,
    TurnInterrupted,
    TurnQueue,
    TurnQueueQuery,
)
from passerelle.core.session.webhook_requests import ListStreamWebhooks
from passerelle.core.subagent.requests import (
    SubagentChanged,
    SubagentQuery,
    SubagentRequest,
    WaitSubagents,
)
from passerelle.core.task.bulk import ChangeTasks, TasksChanged
from passerelle.core.task.requests import ListRecords, TaskChanged, TaskGiven, TaskRequest
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record, value

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from passerelle.core.credentials import Credentials
    from passerelle.core.ids import FacadeTaskId
    from passerelle.core.principal import Principal
    from passerelle.core.push import PushConfig

TurnSource: TypeAlias = Literal["a2a", "channel", "http", "cli", "schedule", "job"]
WaitMode: TypeAlias = Literal["stream", "unary", "none"]
SamePolicy: TypeAlias = Literal["return"]


@value
class SubmitTurn:
    """A message to an agent (CMD-1).

    ``message`` is an A2A 1.0 Message as the caller wrote it, unknown members included; ``task`` and ``context_id`` are
    the ids in it. ``session_id`` puts a new context into an existing session. ``params`` are the other members of the
    caller's SendMessage request. ``wait`` is how the caller takes the answer, and so how the agent is called.
    """

    agent: str
    message: JsonObject
    source: TurnSource
    wait: WaitMode
    task: str | None = None
    context_id: str | None = None
    session_id: str | None = None
    params: JsonObject | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    push: PushConfig | None = None
    """The webhook for events of the task, from its first event on."""
    sealed: str | None = None
    """Where the message is stored until it is sent; then ``message`` has a placeholder."""
    when_busy: QueuePolicy | None = None
    """What to do if the context is busy; None: the policy of the context."""
    when_same: SamePolicy | None = None
    """What to do if the context is already busy with the same message."""
    thread_id: str | None = None
    """The thread that it goes into, instead of the one of its context."""
    makes_thread: bool = True
    """Whether to create the thread if it does not exist."""
    after: tuple[str, ...] = ()
    """Tasks of its context that must complete before it is sent."""
    title: str | None = None
    """The title of the task that it opens; None: its first words."""


@frozen
class CancelTask:
    """Stop a task (CMD-9): the intent is recorded first, then the agent is called."""

    task: str
    agent: str | None = None
    reason: str | None = None
    propagation: Literal["none", "active_run", "subtree"] = "active_run"
    """``none``: the task ends here, and its agent is not called. ``subtree``: its child tasks are cancelled with it."""


@record
class SignedBy:
    """The signature of a device: ``value`` in base64url, ``iat`` its clock in ms.

    ``core/approval/signed_decision.py`` defines the signed bytes.
    """

    device_id: Annotated[str, Field(min_length=1, max_length=64)]
    value: Annotated[str, Field(min_length=1, max_length=128)]
    iat: int


@record
class RespondAction:
    """Answer an approval (CMD-14): the only way to decide one. ``rev`` and ``digest`` name what the caller read."""

    action_id: str
    rev: int
    digest: str
    decision_id: str
    option_id: str | None = None
    content: JsonObject | None = None
    comment: str | None = None
    signature: SignedBy | None = None
    mute_minutes: MuteMinutes | None = None
    """For how many minutes the caller wants no pushes for this agent's approvals; not a part of the answer."""


@frozen
class SetPushConfig:
    """Send events of a task to a webhook. A config with the same id is replaced and keeps its position."""

    task: str
    config: PushConfig
    agent: str | None = None


@frozen
class DeletePushConfig:
    """Delete a push config; deleting a config that does not exist succeeds."""

    task: str
    config_id: str
    agent: str | None = None


@frozen
class RetryDelivery:
    """Retry a failing webhook now, from its last confirmed event."""

    delivery: str


OtherCommand: TypeAlias = (
    CancelTask
    | RespondAction
    | SetPushConfig
    | DeletePushConfig
    | RetryDelivery
    | TaskRequest
    | SessionRequest
    | LinkRequest
    | DeviceRequest
    | PolicyRequest
    | ScheduleRequest
    | JobRequest
    | ChangeTasks
    | ExportBundle
    | AgentRequest
    | SubagentRequest
)
Command: TypeAlias = SubmitTurn | OtherCommand


@frozen
class GetTask:
    """One task as its owner sees it. ``history_length`` None means all that is kept, 0 none.

    ``marked``: with its generation and the cursor after it, from which its stream can be followed. ``in_pieces``: a
    large one is not read; the error ``LongTaskError`` names where it can be read.
    """

    task: str
    agent: str | None = None
    history_length: int | None = None
    marked: bool = False
    in_pieces: bool = False


@frozen
class ListTasks:
    """Tasks of the caller at an agent, by status time, newest first. ``after_ms`` is a status time (exclusive)."""

    agent: str
    context_id: str | None = None
    state: str | None = None
    page_size: int = 50
    page_token: str | None = None
    history_length: int | None = None
    after_ms: int | None = None
    include_artifacts: bool = False


@frozen
class GetRecord:
    """The local record of a task: what A2A has no field for (attempts, edges, progress)."""

    task: str


@frozen
class GetSession:
    """A session with a window of its history: ``limit`` events, the newest ones or those before ``before`` (SNAP-1).

    ``after``: none up to that sequence, since a summary replaces them.
    """

    session_id: str
    limit: int = 200
    before: int | None = None
    after: int = 0


@frozen
class GetSessionTasks:
    """The tasks of a session in one read (SNAP-5)."""

    session_id: str


@frozen
class GetThread:
    """One thread with its tasks (SNAP-2)."""

    thread_id: str


@frozen
class GetThreadContext:
    """The context of a thread from its last boundary on (SNAP-6)."""

    thread_id: str


TaskModel: TypeAlias = Literal[
    "summary",
    "attempts",
    "artifacts",
    "graph",
    "delivery",
    "routing",
    "subagents",
    "context",
    "objects",
    "explain",
]


@frozen
class GetOutput:
    """Content that an event of a task references: a part from ``offset`` on."""

    task: str
    sha256: str
    offset: int = 0
    limit: int = 262_144


@frozen
class GetTaskModel:
    """One read model of a task (SNAP-6…SNAP-19, VAL-9)."""

    task: str
    model: TaskModel


@frozen
class GetAction:
    """One approval and its state; ``wait_s`` waits up to that many seconds while it is open and at ``rev``."""

    action_id: str
    wait_s: int = 0
    rev: int = 0
    """0: the revision at the start of the wait."""


@frozen
class ListActions:
    """A page of the approvals that the caller may see, by state, kind, minimum risk and task."""

    limit: int = 100
    kind: ActionKind | None = None
    risk: Risk | None = None
    task: str | None = None
    page_token: str | None = None
    state: ListedState = "pending"
    owners: Literal["mine", "all"] = "mine"

    @property
    def is_narrow(self) -> bool:
        """Whether a filter is set."""
        return (self.kind, self.risk, self.task) != (None, None, None)


@frozen
class GetPushConfig:
    """One push config; ``config_id`` None means the only one."""

    task: str
    config_id: str | None
    agent: str | None = None


@frozen
class ListPushConfigs:
    """The push configs of a task, by their ids."""

    task: str
    agent: str | None = None
    page_size: int | None = None
    page_token: str | None = None


@frozen
class ListAgents:
    """Agents that the caller may use: those with a skill of that id or name, or with that tag."""

    skill: str | None = None
    tag: str | None = None


@frozen
class GetArchived:
    """The session of an archive ref, with at most ``limit`` of its events after the sequence ``after`` (TEV-17)."""

    ref: str
    after: int = 0
    limit: int = 200


@record
class GetCapabilities:
    """What this gateway covers of the scope of its specification (ID-17)."""


@frozen
class ListDeliveries:
    """Webhooks whose deliveries fail, longest failing first: the caller's, or all for an operator."""

    limit: int = 100
    page_token: str | None = None


Query: TypeAlias = (
    GetTask
    | ListTasks
    | GetRecord
    | GetSession
    | GetSessionTasks
    | GetThread
    | GetThreadContext
    | GetTaskModel
    | GetOutput
    | GetAction
    | ListActions
    | GetPushConfig
    | ListPushConfigs
    | ListAgents
    | GetCapabilities
    | OversightQuery
    | GetArchived
    | ListDeliveries
    | ListRecords
    | ListSessions
    | GetChannels
    | ListStreamWebhooks
    | DeviceQuery
    | GetAudit
    | GetBundle
    | PolicyQuery
    | ScheduleQuery
    | JobQuery
    | TurnQueueQuery
    | SubagentQuery
    | WaitSubagents
)


@value
class TurnAccepted:
    """A turn is stored. ``task`` is the local record; the first answer shows whether callers see it as a task.

    ``position``: its place in the queue of its context, from 1.
    """

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    facade: FacadeTaskId
    context_id: str
    repeated: bool = False
    position: int | None = None


@frozen
class CancelAccepted:
    """The intent is stored, and the agent of the task was called."""


@frozen
class ActionAnswered:
    """This answer decided (``won``), repeats the one that did (``replayed``), or is one of several that are needed.

    For ``vote_recorded`` there is no decision yet; ``votes`` counts those for the same option so far.
    """

    outcome: Literal["won", "replayed", "vote_recorded"]
    rev: int
    decision: ApprovalDecision | None
    votes: int = 0
    need: int = 1


@frozen
class PushConfigSet:
    """The config is stored, in A2A form."""

    config: JsonObject


@frozen
class PushConfigDeleted:
    """The config does not exist (any more)."""


@record
class DeliveryRetried:
    """The webhook is retried (``retried``), or it was not failing (``live``)."""

    delivery: str
    outcome: Literal["retried", "live"]


RecordResult: TypeAlias = (
    DeliveryRetried
    | TaskChanged
    | TaskGiven
    | SessionChanged
    | TurnInterrupted
    | ThreadResumed
    | ThreadRolledBack
    | ThreadCompacted
    | LinkAnswer
    | DeviceAnswer
    | PolicyAnswer
    | BundleExported
    | ScheduleChanged
    | JobChanged
    | TasksChanged
    | AgentChanged
    | TurnQueue
    | SubagentChanged
)
"""Results that are their own wire form."""
Result: TypeAlias = (
    TurnAccepted
    | CancelAccepted
    | ActionAnswered
    | PushConfigSet
    | PushConfigDeleted
    | RecordResult
)


class Authenticator(Protocol):
    """Turns credentials into a principal; one interface for every kind of credential."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        """The principal of these credentials. Waits only if a key must be fetched.

        Raises:
            Unauthenticated: there are none, or they are not valid.
        """
        ...


class CommandService(Protocol):
    """The one service behind every edge. Errors are those of ``core/errors.py``."""

    def execute(
        self, principal: Principal, command: Command, idem: str | None
    ) -> Awaitable[Result]:
        """Executes a command, once per idempotency key and principal (CMD-30); await it for the result."""
        ...

    async def read(self, principal: Principal, query: Query) -> JsonObject:
        """Answers a query from stored state."""
        ...
