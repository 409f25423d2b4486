"""The calls about policy: grants, and the mode that is on for a while. Their parameters are the requests themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.core.attention_requests import NoteSeen, ReturnAgain, ReturnOwed, SeenNoted
from passerelle.core.policy_requests import (
    ActionContent,
    AskPermission,
    BypassSet,
    EvaluatePermission,
    ExplainAction,
    GetActionContent,
    GetPermissions,
    GetPolicy,
    GrantRevoked,
    Judgement,
    ListGrants,
    PermissionView,
    PolicyTried,
    PolicyView,
    ResolvePermission,
    RevokeGrant,
    SetBypass,
    TryPolicy,
    UsePermission,
    WithdrawPermission,
)
from passerelle.core.principal import Scope
from passerelle.core.read_models.permissions import PermissionSummary
from passerelle.gateway.rpc_call import Call

POLICY_ROWS: Final[Sequence[Call]] = (
    Call(
        "list_grants",
        "The standing yeses of the caller, and how often each was used",
        (Scope.READ_APPROVALS,),
        ListGrants,
        lambda given, _: given,
    ),
    Call(
        "revoke_grant",
        "End a standing yes",
        (Scope.GRANT, Scope.DECIDE),
        RevokeGrant,
        lambda given, _: given,
        GrantRevoked,
    ),
    Call(
        "set_bypass",
        "Have everything allowed for a while, but for what is critical or destroys",
        (Scope.GRANT,),
        SetBypass,
        lambda given, _: given,
        BypassSet,
    ),
    Call(
        "evaluate_permission",
        "What policy would say, and why; nothing is written",
        (Scope.READ_APPROVALS, Scope.HOST, Scope.ASK),
        EvaluatePermission,
        lambda given, _: given,
        model=Judgement,
    ),
    Call(
        "ask_permission",
        "Ask, as a worker, whether something may be done for a task",
        (Scope.ASK,),
        AskPermission,
        lambda given, _: given,
        PermissionView,
    ),
    Call(
        "use_permission",
        "Say, as a worker, that what was allowed is done now",
        (Scope.ASK,),
        UsePermission,
        lambda given, _: given,
        PermissionView,
    ),
    Call(
        "withdraw_permission",
        "Take back, as whoever asked, a question that is open",
        (Scope.ASK, Scope.CALL, Scope.WRITE_TASKS),
        WithdrawPermission,
        lambda given, _: given,
        PermissionView,
    ),
    Call(
        "resolve_permission",
        "Answer a question by the policy of a host",
        (Scope.HOST,),
        ResolvePermission,
        lambda given, _: given,
        PermissionView,
    ),
    Call(
        "see_action",
        "Say that a question was shown to the caller",
        (Scope.READ_APPROVALS,),
        NoteSeen,
        lambda given, _: given,
        SeenNoted,
    ),
    Call(
        "return_again",
        "Try an answer again that could not be delivered",
        (Scope.DECIDE,),
        ReturnAgain,
        lambda given, _: given,
        ReturnOwed,
    ),
    Call(
        "get_action_content",
        "All of what a question is about, also where it shows only the beginning",
        (Scope.READ_APPROVALS, Scope.ASK),
        GetActionContent,
        lambda given, _: given,
        model=ActionContent,
    ),
    Call(
        "explain_action",
        "Why a question was asked, what every source said, and what became of it",
        (Scope.READ_APPROVALS,),
        ExplainAction,
        lambda given, _: given,
    ),
    Call(
        "try_policy",
        "What other rules would have said to what was asked lately",
        (Scope.READ_APPROVALS,),
        TryPolicy,
        lambda given, _: given,
        model=PolicyTried,
    ),
    Call(
        "get_policy",
        "The rules that are in force for the work of the caller",
        (Scope.READ_AUDIT, Scope.OPERATE),
        GetPolicy,
        lambda given, _: given,
        model=PolicyView,
    ),
    Call(
        "get_permissions",
        "What may be done in a thread, and who is asked at this moment",
        (Scope.READ_TASKS,),
        GetPermissions,
        lambda given, _: given,
        model=PermissionSummary,
    ),
)
