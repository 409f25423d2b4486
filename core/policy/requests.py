"""Requests about policy: grants, bypass mode, rules. Each class is also the wire form."""

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
    """``revoked``: it ended now; ``gone``: another command revoked it before."""

    grant_id: str
    outcome: Literal["revoked", "gone"]
    repeated: bool = False


@record
class SetBypass:
    """Auto-approve everything except critical or destructive actions for this many seconds; 0 ends it."""

    seconds: Annotated[int, Field(ge=0, le=LONGEST_BYPASS_S)] = 3_600


@record
class BypassSet:
    """Until when bypass is on, RFC 3339; None: it is off."""

    until: str | None = None
    repeated: bool = False


@record
class Subject:
    """The requested act: a tool with its arguments, a command, a path, a host."""

    tool: PolicyName = ""
    arguments: JsonObject = field(default_factory=dict[str, Json])
    command: str | list[str] | None = None
    path: PolicyName = ""
    host: PolicyName = ""

    def to_content(self) -> JsonObject:
        """Its wire form, without empty members."""
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
    """A local worker asks for permission during a task, and waits for the decision.

    ``dedupe_key`` identifies the request, so that a repeat is not asked twice; the ``digest`` in the answer binds the
    act to ``subject``.
    """

    task_id: Id
    action_type: ActionType
    subject: Subject
    dedupe_key: Id
    destructive: bool = False
    risk: Risk | None = None


@record
class UsePermission:
    """Use a permission: ``subject`` is the act that is about to run (P6)."""

    action_id: Id
    subject: Subject


@record
class WithdrawPermission:
    """The asking side withdraws its request: the approval ends undecided."""

    action_id: Id


@record
class ResolvePermission:
    """The policy of a host decides an approval instead of a person (CMD-21)."""

    action_id: Id
    rev: int
    digest: str
    decision_id: Id
    option_id: Id
    comment: Annotated[str, Field(max_length=2_000)] | None = None


@record
class SetPolicy:
    """Replace all edited rules by these; those of the configuration stay (EXT-3).

    ``version`` is the ``rev`` of the policy that the caller read. The answer shows what the rules would have changed in
    the newest ``tries`` evaluated cases; with ``dry_run`` nothing is written.
    """

    rules: tuple[StatedRule, ...]
    version: Annotated[int, Field(ge=1)]
    dry_run: bool = False
    tries: Annotated[int, Field(ge=0, le=1_000)] = 200


@record
class ReplayedCase:
    """One recorded case: the decision then, and by the new rules. Without ``now`` it was not recorded whole."""

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
    """The result under the new rules; ``changed`` counts the cases with a different decision."""

    version: str
    looked_at: int
    changed: int
    cases: tuple[ReplayedCase, ...] = ()


@record
class PolicySet:
    """The edited rules now in force. ``version`` is what evaluations name; in a dry run, what they would name.

    ``tried`` has the cases that these rules decide differently.
    """

    rev: int
    version: str
    dry_run: bool = False
    repeated: bool = False
    tried: PolicyTried | None = None


@record
class PermissionView:
    """The current approval; ``repeated``: it was asked, or withdrawn, before."""

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
    """What would policy decide? Nothing is written, no hook is called, no grant is used.

    ``about``: ``asks`` takes ``action_type`` and ``subject`` (``agent`` asks), ``calls`` an ``agent``, ``delegations``
    an ``agent`` and the ``text`` for it, ``commands`` the ``tool`` of ``subject``.
    """

    about: Literal["asks", "calls", "delegations", "commands"] = "asks"
    agent: PolicyName = ""
    text: Annotated[str, Field(max_length=100_000)] = ""
    action_type: ActionType = "tool_call"
    subject: Subject = field(default_factory=Subject)
    destructive: bool = False
    risk: Risk | None = None
    task_id: Id | None = None
    """The task of the request: grants may be bound to it."""


@record
class Judgement:
    """The policy decision and its reasons."""

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
    """An agent with its skills, and the policy decision for work sent to it.

    ``state``: ``denied`` and ``ask`` by policy, with the deciding rules; ``unavailable``: the agent has no known card,
    or calls to it fail repeatedly. Rules about the content of a message apply later.
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
    """``mode`` and ``policy_version`` are the current ones; ``bypass``: the caller is auto-approved (SNAP-3)."""

    mode: str
    policy_version: str
    bypass: bool
    agents: tuple[AgentTools, ...]


@record
class GetActionContent:
    """The whole content of an approval, also if the approval shows only its beginning."""

    action_id: Id


@record
class ActionContent:
    """The content, escaped for display; ``bytes`` is the size of its canonical form, whose digest is ``contentDigest``.

    ``digest`` is that of the approval: it covers the content, or its digest if the approval does not show it.
    """

    action_id: str
    rev: int
    digest: str
    content: JsonObject
    content_digest: str
    bytes: int


@record
class ExplainAction:
    """Why an approval was opened, all votes and decisions, and its outcome."""

    action_id: Id


@record
class TryPolicy:
    """What would other rules have decided for recent cases? Nothing is written.

    ``policy`` has ``rules``, ``owners``, ``mode`` and ``grants`` as in the settings. It is tried on the newest
    ``limit`` evaluations of the caller's tasks.
    """

    policy: JsonObject
    limit: Annotated[int, Field(ge=1, le=1_000)] = 200


@record
class GetPermissions:
    """The permissions in a thread, and its pending approvals now (SNAP-9)."""

    thread_id: Id


@record
class GetPolicy:
    """The rules that apply to the caller's work."""


@record
class ApproversView:
    """The approvers from a risk level on. ``steps``: the audience, each step with its start in milliseconds."""

    risk: Risk
    need: int
    veto: bool
    allow_self: bool
    steps: tuple[AudienceStep, ...]


@record
class RuleView:
    """One rule, as written. ``owner``: it applies only to the work of this caller."""

    name: str
    effect: Literal["deny", "ask", "allow"]
    about: tuple[str, ...]
    when: str | None = None
    argv: tuple[str, ...] = ()
    grantable: bool = False
    reason: str | None = None
    owner: str | None = None
    approvers: ApproversView | None = None
    """The approvers of what it asks about."""
    origin: Literal["configuration", "edited"] = "configuration"


@record
class EditedRulesView:
    """The edited rules: all of them, in the form in which they are replaced."""

    rules: tuple[StatedRule, ...] = ()
    edited_by: str | None = None
    edited_at: str | None = None


@record
class PolicyView:
    """The policy in force. ``version`` is what evaluations name; hooks are in call order.

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
    """Edited rules that are ignored, since they allow without a condition."""
    edited: EditedRulesView | None = None
    """For callers that may edit them."""


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
