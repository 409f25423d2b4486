"""Approval requests for tests: a request with every default set, its principals, and a stream to fold."""

from dataclasses import dataclass, field, replace

from passerelle.core.approval.commands import ActionCommand, AnswerAction, OpenAction
from passerelle.core.approval.machine import decide, evolve
from passerelle.core.approval.record import ActionRecord
from passerelle.core.events import Event, Fact
from passerelle.core.facts import Scope
from passerelle.core.ids import Shard
from passerelle.core.payloads.approval import ApprovalRequest, Option, Origin, RemotePause
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.times import format_ms
from tests.support.spelt_ids import compose_id

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
SHARD = Shard(0x2F)

OWNER = Principal(
    "ada",
    kind="person",
    scopes=frozenset({AccessScope.DECIDE, AccessScope.DECIDE_HIGH}),
    device="dev-1",
    device_name="phone",
)
OTHER_DEVICE = replace(OWNER, device="dev-2", device_name="laptop")
ALLOW = Option("allow", "Allow", "allow_once")
REJECT = Option("reject", "Reject", "reject_once")
REPLY = Option("answer", "Reply", "answer")
CANCEL = Option("cancel", "Cancel the task", "cancel")
PAUSE = RemotePause(
    "permission", "n1 1 sha256:x", "occurrence-1", "TASK_STATE_INPUT_REQUIRED", "m1"
)


def make_id(prefix: str, number: int = 1) -> str:
    """A valid id, different for each number."""
    return compose_id(prefix, SHARD, NOW_MS, number)


SCOPE = Scope(
    session_id=make_id("sess"),
    thread_id=make_id("th"),
    turn_id=make_id("turn"),
    task_id=make_id("task"),
    run_id=make_id("run"),
    step_id=make_id("step"),
)


def make_request(number: int = 1, /, **changes: object) -> ApprovalRequest:
    """A permission requested by a peer, owned by ``OWNER``, open for an hour."""
    request = ApprovalRequest(
        action_id=make_id("act", number),
        kind="permission",
        action_type="tool_call",
        title="payments asks to run a tool",
        owner=OWNER.key,
        tenant=OWNER.tenant,
        principal=OWNER.id,
        origin=Origin("outbound", "peer", "payments", "sha256:card"),
        options=(ALLOW, REJECT),
        digest="sha256:0f",
        risk="medium",
        on_timeout="reject",
        created_ms=NOW_MS,
        expires_ms=NOW_MS + HOUR_MS,
        policy_version="sha256:policy",
        evaluation_id=make_id("eval", number),
        remote=PAUSE,
    )
    return replace(request, **changes)  # type: ignore[arg-type]  # the caller names the fields


def make_input(number: int = 1, /, **changes: object) -> ApprovalRequest:
    """An approval request that asks for free text."""
    words: dict[str, object] = {
        "kind": "input",
        "action_type": "free_input",
        "options": (REPLY, CANCEL),
        "on_timeout": "keep_waiting",
    }
    return make_request(number, **{**words, **changes})


def make_answer(
    record: ActionRecord, option: str | None = "allow", /, **changes: object
) -> AnswerAction:
    """A valid answer of the owner to the open request in ``record``."""
    answer = AnswerAction(OWNER, record.rev, record.request.digest, make_id("dec"), option)
    return replace(answer, **changes)  # type: ignore[arg-type]  # the caller names the fields


@dataclass(slots=True)
class Stream:
    """Acts as the store: numbers the facts of a command, keeps them, and folds the record."""

    record: ActionRecord | None = None
    events: list[Event] = field(default_factory=list[Event])
    now_ms: int = NOW_MS

    def tell(self, command: ActionCommand) -> list[Fact]:
        """Decides and folds the command; errors pass through and change nothing."""
        facts = decide(self.record, command, self.now_ms)
        for fact in facts:
            self.push(fact)
        return facts

    def push(self, fact: Fact) -> Event:
        """Appends one fact."""
        number = len(self.events) + 1
        event = Event(make_id("ev", number), format_ms(self.now_ms), "rt", fact, number)
        self.events.append(event)
        self.record = evolve(self.record, event)
        return event

    def open(self, request: ApprovalRequest | None = None) -> ActionRecord:
        """Opens the request and returns the open record."""
        self.tell(OpenAction(request or make_request(), SCOPE))
        return self.now

    @property
    def now(self) -> ActionRecord:
        """The current record; there must be one."""
        assert self.record is not None
        return self.record
