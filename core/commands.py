"""What can be asked of the gateway: the closed unions behind A2A, ``/v1``, channels and the command line.

An edge translates into one of these and nothing else (CMD-27). A command may change something; a query
never does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeAlias

from pydantic import Field

from passerelle.core.approval.requests import GetAudit, MuteMinutes
from passerelle.core.evidence.requests import BundleExported, ExportBundle, GetBundle
from passerelle.core.job.requests import JobChanged, JobQuery, JobRequest
from passerelle.core.oversight_requests import OversightQuery
from passerelle.core.payloads.approval import ActionKind, ApprovalDecision, ListedState, Risk
from passerelle.core.payloads.conversation import QueuePolicy
from passerelle.core.policy.requests import PolicyAnswer, PolicyQuery, PolicyRequest
from passerelle.core.schedule.requests import ScheduleChanged, ScheduleQuery, ScheduleRequest
from passerelle.core.session.agent_requests import AgentChanged, AgentRequest
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

    ``message`` is an A2A 1.0 Message as the caller wrote it, unknown members included; ``task`` and ``context_id``
    are what it names. ``session_id`` puts a new context into a session that exists. ``params`` are further members of
    the caller's SendMessage request. ``wait`` says how the caller takes its answer, and so how the peer is asked.
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
    """Where to tell of the task, from its first event on."""
    sealed: str | None = None
    """Where the message itself stands until it is sent; ``message`` has a placeholder then."""
    when_busy: QueuePolicy | None = None
    """What becomes of it where its context works; None: what the context is set to."""
    when_same: SamePolicy | None = None
    """What becomes of it where its context works at the same already."""
    thread_id: str | None = None
    """The thread that it goes into, in place of its context."""
    makes_thread: bool = True
    """Whether a thread is made for it where none is there."""
    after: tuple[str, ...] = ()
    """Tasks of its context that have to complete before it is sent."""
    title: str | None = None
    """What the task is called that it opens; None: as its first words."""


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Stop a task (CMD-9): the intent is recorded first, then the peer is told."""

    task: str
    agent: str | None = None
    reason: str | None = None
    propagation: Literal["none", "active_run", "subtree"] = "active_run"
    """``none``: the task ends here, and its agent is not told. ``subtree``: its child tasks are cancelled with it."""


@record
class SignedBy:
    """The signature of a device: ``value`` in base64url, ``iat`` its clock in ms.

    ``core/approval/signed_decision.py`` says over which bytes.
    """

    device_id: Annotated[str, Field(min_length=1, max_length=64)]
    value: Annotated[str, Field(min_length=1, max_length=128)]
    iat: int


@record
class RespondAction:
    """Answer a question (CMD-14): the only way to resolve one. ``rev`` and ``digest`` say what was read."""

    action_id: str
    rev: int
    digest: str
    decision_id: str
    option_id: str | None = None
    content: JsonObject | None = None
    comment: str | None = None
    signature: SignedBy | None = None
    mute_minutes: MuteMinutes | None = None
    """For how long whoever is answered wants no pushes for what this agent asks; it is no part of the answer."""


@dataclass(frozen=True, slots=True)
class SetPushConfig:
    """Tell of a task at a webhook; a config with the same id is replaced, and goes on where it was."""

    task: str
    config: PushConfig
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class DeletePushConfig:
    """Tell there no more; a config that is not there is as good as deleted."""

    task: str
    config_id: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class RetryDelivery:
    """Try a failing webhook again now, from what it has confirmed."""

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


@dataclass(frozen=True, slots=True)
class GetTask:
    """One task as its owner sees it. ``history_length`` None means all that is kept, 0 none.

    ``marked``: with its generation and the cursor behind it, from which its stream can be followed on. ``in_pieces``:
    one that is large is not read, but told where it can be read (``LongTaskError``).
    """

    task: str
    agent: str | None = None
    history_length: int | None = None
    marked: bool = False
    in_pieces: bool = False


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class GetRecord:
    """The local record of a task: what A2A has no room for (attempts, edges, progress)."""

    task: str


@dataclass(frozen=True, slots=True)
class GetSession:
    """A session with a window of its history: ``limit`` events, the newest ones or those before ``before`` (SNAP-1).

    ``after``: none up to that sequence, as a summary stands for them.
    """

    session_id: str
    limit: int = 200
    before: int | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class GetSessionTasks:
    """The tasks of a session at one look (SNAP-5)."""

    session_id: str


@dataclass(frozen=True, slots=True)
class GetThread:
    """One thread with its tasks (SNAP-2)."""

    thread_id: str


@dataclass(frozen=True, slots=True)
class GetThreadContext:
    """What of a thread counts from its last boundary on (SNAP-6)."""

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


@dataclass(frozen=True, slots=True)
class GetOutput:
    """Content that a fact of a task names by reference: a part of it, from ``offset`` on."""

    task: str
    sha256: str
    offset: int = 0
    limit: int = 262_144


@dataclass(frozen=True, slots=True)
class GetTaskModel:
    """One read model of a task (SNAP-6…SNAP-19, VAL-9)."""

    task: str
    model: TaskModel


@dataclass(frozen=True, slots=True)
class GetAction:
    """One question and where it stands; ``wait_s`` waits for so long while it is open and at ``rev``."""

    action_id: str
    wait_s: int = 0
    rev: int = 0
    """0: whatever it is when the wait begins."""


@dataclass(frozen=True, slots=True)
class ListActions:
    """A page of the questions that the caller may see: those in a state, and of a kind, from a risk on, of a task."""

    limit: int = 100
    kind: ActionKind | None = None
    risk: Risk | None = None
    task: str | None = None
    page_token: str | None = None
    state: ListedState = "pending"
    owners: Literal["mine", "all"] = "mine"

    @property
    def is_narrow(self) -> bool:
        """Whether some are left out."""
        return (self.kind, self.risk, self.task) != (None, None, None)


@dataclass(frozen=True, slots=True)
class GetPushConfig:
    """One push config; ``config_id`` None means the only one there is."""

    task: str
    config_id: str | None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class ListPushConfigs:
    """The push configs of a task, by their ids."""

    task: str
    agent: str | None = None
    page_size: int | None = None
    page_token: str | None = None


@dataclass(frozen=True, slots=True)
class ListAgents:
    """Agents that the caller may use: those with a skill of that id or name, those with that tag."""

    skill: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class GetArchived:
    """What a ref of the archive names, with at most ``limit`` of its facts behind the sequence ``after`` (TEV-17)."""

    ref: str
    after: int = 0
    limit: int = 200


@record
class GetCapabilities:
    """What this gateway covers of the scope of its specification (ID-17)."""


@dataclass(frozen=True, slots=True)
class ListDeliveries:
    """Webhooks whose deliveries fail, the longest failing ones first: the caller's, or an operator's all."""

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
    """A turn is stored. ``task`` is the local record; whether callers see it as a task shows with the first answer.

    ``position``: it waits behind others of its context, from 1.
    """

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    facade: FacadeTaskId
    context_id: str
    repeated: bool = False
    position: int | None = None


@dataclass(frozen=True, slots=True)
class CancelAccepted:
    """The intent is stored, and the agent that works on the task was told."""


@dataclass(frozen=True, slots=True)
class ActionAnswered:
    """Our answer decides (``won``), repeats one that did (``replayed``), or is one of several that are needed.

    Of ``vote_recorded`` there is no decision yet; ``votes`` are those that agree to the same so far.
    """

    outcome: Literal["won", "replayed", "vote_recorded"]
    rev: int
    decision: ApprovalDecision | None
    votes: int = 0
    need: int = 1


@dataclass(frozen=True, slots=True)
class PushConfigSet:
    """The config is stored, in A2A form."""

    config: JsonObject


@dataclass(frozen=True, slots=True)
class PushConfigDeleted:
    """The config is not there (any more)."""


@record
class DeliveryRetried:
    """The webhook is tried again (``retried``), or there was nothing to be retried (``live``)."""

    delivery: str
    outcome: Literal["retried", "live"]


Result: TypeAlias = (
    TurnAccepted
    | CancelAccepted
    | ActionAnswered
    | PushConfigSet
    | PushConfigDeleted
    | DeliveryRetried
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


class Authenticator(Protocol):
    """Makes a principal out of credentials; every kind of credential stands behind this one call."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Who shows these. Waits for something only where a key has to be fetched first.

        Raises:
            Unauthenticated: there are none, or they do not hold.
        """
        ...


class CommandService(Protocol):
    """The one service behind every edge. Errors are those of ``core/errors.py``."""

    def execute(
        self, principal: Principal, command: Command, idem: str | None
    ) -> Awaitable[Result]:
        """Carries out a command, once per idempotency key and principal (CMD-30); to be awaited for what came of it."""
        ...

    async def read(self, principal: Principal, query: Query) -> JsonObject:
        """Answers a query from stored state."""
        ...
