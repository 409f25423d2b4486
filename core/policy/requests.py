"""What can be asked about policy: grants, a mode that is on for a while. Each is the form in which it is sent."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import Field

from passerelle.core.approval.requests import AttentionAnswer, AttentionRequest, ListMutes
from passerelle.core.payloads.approval import ActionType, AudienceStep, Risk, TrailStep
from passerelle.core.payloads.governance import StatedRule
from passerelle.core.task.requests import Id
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record

LONGEST_BYPASS_S = 8 * 3_600
PolicyName: TypeAlias = Annotated[str, Field(max_length=4_096)]


@record
class RevokeGrant:
    """End a standing approval."""

    grant_id: Id


@record
class GrantRevoked:
    """``revoked``: it ended now; ``gone``: it had been revoked before, by another command than this one."""

    grant_id: str
    outcome: Literal["revoked", "gone"]
    repeated: bool = False


@record
class SetBypass:
    """Auto-approve everything except critical or destructive actions for this many seconds; 0 ends it."""

    seconds: Annotated[int, Field(ge=0, le=LONGEST_BYPASS_S)] = 3_600


@record
class BypassSet:
    """Until when it is on, RFC 3339; None: it is off."""

    until: str | None = None
    repeated: bool = False


@record
class Subject:
    """What somebody wants to do: a tool with its arguments, a command, a path, a host."""

    tool: PolicyName = ""
    arguments: JsonObject = field(default_factory=dict[str, Json])
    command: str | list[str] | None = None
    path: PolicyName = ""
    host: PolicyName = ""

    def to_content(self) -> JsonObject:
        """It as people see it, without what it does not have."""
        members: JsonObject = {
            "name": self.tool,
            "arguments": self.arguments,
            "command": cast("Json", self.command),
            "path": self.path,
            "host": self.host,
        }
        return {name: one for name, one in members.items() if one}


@record
class AskPermission:
    """A worker of this machine wants to do something in the work of a task, and waits until it may.

    ``dedupe_key`` names what is asked, so that the same one is not asked twice; ``digest`` of the answer binds what is
    done to ``subject``.
    """

    task_id: Id
    action_type: ActionType
    subject: Subject
    dedupe_key: Id
    destructive: bool = False
    risk: Risk | None = None


@record
class UsePermission:
    """What was asked for is about to be done, with ``subject`` as it is about to be done (P6)."""

    action_id: Id
    subject: Subject


@record
class WithdrawPermission:
    """Whoever asked does not want to know any more: the question ends, and nobody is asked."""

    action_id: Id


@record
class ResolvePermission:
    """The policy of a host decides a question in place of a person (CMD-21)."""

    action_id: Id
    rev: int
    digest: str
    decision_id: Id
    option_id: Id
    comment: Annotated[str, Field(max_length=2_000)] | None = None


@record
class SetPolicy:
    """Put these rules beside those of the configuration, in place of all that were put there before (EXT-3).

    ``version`` is the ``rev`` of the policy that was read. The answer says what the rules would have changed of the
    newest ``tries`` cases that were judged; with ``dry_run`` nothing is written.
    """

    rules: tuple[StatedRule, ...]
    version: Annotated[int, Field(ge=1)]
    dry_run: bool = False
    tries: Annotated[int, Field(ge=0, le=1_000)] = 200


@record
class ReplayedCase:
    """One recorded case: what was decided, and what the other rules say. Without ``now`` it was not recorded whole."""

    evaluation_id: str
    task_id: str
    at: str
    subject: str
    before: str
    rules_before: tuple[str, ...] = ()
    now: str | None = None
    source: str | None = None
    rules: tuple[str, ...] = ()


@record
class PolicyTried:
    """What the other rules say; ``changed`` counts those that say something else than what was decided."""

    version: str
    looked_at: int
    changed: int
    cases: tuple[ReplayedCase, ...] = ()


@record
class PolicySet:
    """The edited rules as they stand. ``version`` is what evaluations name; in a dry run, what they would name.

    ``tried`` has the cases that are decided otherwise by these rules.
    """

    rev: int
    version: str
    dry_run: bool = False
    repeated: bool = False
    tried: PolicyTried | None = None


@record
class PermissionView:
    """A question as it stands; ``repeated``: it had been asked, or taken back, before."""

    action: JsonObject
    repeated: bool = False


PolicyRequest: TypeAlias = (
    RevokeGrant
    | SetBypass
    | AskPermission
    | UsePermission
    | WithdrawPermission
    | ResolvePermission
    | SetPolicy
    | AttentionRequest
)
PolicyAnswer: TypeAlias = GrantRevoked | BypassSet | PermissionView | PolicySet | AttentionAnswer


@record
class ListGrants:
    """The grants of the caller."""


@record
class EvaluatePermission:
    """What would policy say? Nothing is written, no hook is asked, no grant is used.

    ``about``: ``asks`` takes ``action_type`` and ``subject`` (``agent`` asks), ``calls`` an ``agent``, ``delegations``
    an ``agent`` and the ``text`` that it would be sent, ``commands`` the ``tool`` of ``subject``.
    """

    about: Literal["asks", "calls", "delegations", "commands"] = "asks"
    agent: PolicyName = ""
    text: Annotated[str, Field(max_length=100_000)] = ""
    action_type: ActionType = "tool_call"
    subject: Subject = field(default_factory=Subject)
    destructive: bool = False
    risk: Risk | None = None
    task_id: Id | None = None
    """Where it would be asked: grants may be bound to it."""


@record
class Judgement:
    """What policy says, and why."""

    decision: Literal["allow", "ask", "deny"]
    source: str
    reason: str
    policy_version: str
    risk: Risk
    risk_reasons: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    trail: tuple[TrailStep, ...] = ()
    grant_id: str | None = None


@record
class GetToolInventory:
    """What may the caller use now: agents with a skill of that id or name, with that tag, or all (CMD-18)."""

    skill: PolicyName | None = None
    tag: PolicyName | None = None


@record
class AgentTools:
    """An agent with its skills, and what policy says to work for it.

    ``state``: ``denied`` and ``ask`` by policy, with the rules that said so; ``unavailable``: nothing is known of the
    agent, or calls to it fail again and again. What a message says is not known yet: rules about it count later.
    """

    agent: str
    state: Literal["allowed", "ask", "denied", "unavailable"]
    source: str
    reason: str
    rules: tuple[str, ...]
    risk: Risk
    title: str
    tags: tuple[str, ...]
    skills: tuple[JsonObject, ...]


@record
class ToolInventory:
    """``mode`` and ``policy_version`` are those of this moment; ``bypass``: the caller is auto-approved (SNAP-3)."""

    mode: str
    policy_version: str
    bypass: bool
    agents: tuple[AgentTools, ...]


@record
class GetActionContent:
    """All of what a question is about, also where the question shows only its beginning."""

    action_id: Id


@record
class ActionContent:
    """The content as people see it, escaped; ``bytes`` in its canonical form, whose digest is ``contentDigest``.

    ``digest`` is that of the question: it covers the content, or its digest where the question does not show it.
    """

    action_id: str
    rev: int
    digest: str
    content: JsonObject
    content_digest: str
    bytes: int


@record
class ExplainAction:
    """Why a question was asked, what everybody said, and what became of it."""

    action_id: Id


@record
class TryPolicy:
    """What would other rules have said to what was asked lately? Nothing is written.

    ``policy`` has ``rules``, ``owners``, ``mode`` and ``grants`` as in the settings. Looked at are the newest
    ``limit`` evaluations of the caller's tasks.
    """

    policy: JsonObject
    limit: Annotated[int, Field(ge=1, le=1_000)] = 200


@record
class GetPermissions:
    """What may be done in a thread, and who is asked at this moment (SNAP-9)."""

    thread_id: Id


@record
class GetPolicy:
    """The rules that are in force for the work of the caller."""


@record
class ApproversView:
    """Who decides from a risk on. ``steps``: who is asked, each step from so many milliseconds on."""

    risk: Risk
    need: int
    veto: bool
    allow_self: bool
    steps: tuple[AudienceStep, ...]


@record
class RuleView:
    """One rule, as it was written. ``owner``: it speaks about the work of this caller alone."""

    name: str
    effect: Literal["deny", "ask", "allow"]
    about: tuple[str, ...]
    when: str | None = None
    argv: tuple[str, ...] = ()
    grantable: bool = False
    reason: str | None = None
    owner: str | None = None
    approvers: ApproversView | None = None
    """Who decides what it asks."""
    origin: Literal["configuration", "edited"] = "configuration"


@record
class EditedRulesView:
    """The rules that were put while the gateway runs: all of them, as they are sent to be replaced."""

    rules: tuple[StatedRule, ...] = ()
    edited_by: str | None = None
    edited_at: str | None = None


@record
class PolicyView:
    """What is in force by now. ``version`` is what evaluations name; hooks stand in the order in which they speak.

    ``rev`` counts the edits of its edited rules. ``unsound``: why everything is denied.
    """

    version: str
    mode: str
    rev: int
    rules: tuple[RuleView, ...] = ()
    approvers: tuple[ApproversView, ...] = ()
    hooks: tuple[str, ...] = ()
    classifies: bool = False
    grant_scope: str | None = None
    unsound: str | None = None
    skipped: tuple[str, ...] = ()
    """Edited rules that count for nothing, since they allow without a condition."""
    edited: EditedRulesView | None = None
    """For whoever may edit them."""


PolicyQuery: TypeAlias = (
    ListGrants
    | ListMutes
    | EvaluatePermission
    | GetToolInventory
    | GetActionContent
    | ExplainAction
    | TryPolicy
    | GetPermissions
    | GetPolicy
)
