"""The calls about policy (grants, and the mode that is on for a while), about devices, and about what was decided.

Their parameters are the commands and queries themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.core.approval.requests import (
    Audit,
    GetAudit,
    ListMutes,
    MutePeer,
    Mutes,
    NoteSeen,
    PeerMuted,
    ReturnAgain,
    ReturnOwed,
    SeenNoted,
    UnmutePeer,
)
from passerelle.core.policy.requests import (
    ActionContent,
    AskPermission,
    BypassSet,
    EvaluatePermission,
    ExplainAction,
    GetActionContent,
    GetPermissions,
    GetPolicy,
    GetToolInventory,
    GrantRevoked,
    Judgement,
    ListGrants,
    PermissionView,
    PolicySet,
    PolicyTried,
    PolicyView,
    ResolvePermission,
    RevokeGrant,
    SetBypass,
    SetPolicy,
    ToolInventory,
    TryPolicy,
    UsePermission,
    WithdrawPermission,
)
from passerelle.core.principal import AccessScope
from passerelle.core.read_models.permissions import PermissionSummary
from passerelle.core.session.device_requests import (
    ConfirmDevice,
    DeviceChanged,
    DevicePaired,
    GetPushKey,
    ListDevices,
    PairDevice,
    RemoveDevicePush,
    RenameDevice,
    RevokeDevice,
    SetDevicePush,
)
from passerelle.gateway.rpc.forms import AuditParams
from passerelle.gateway.rpc.paging import choose_size, read_position
from passerelle.runtime.common.calls import Caller, MethodRow

POLICY_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "list_grants",
        "The standing approvals of the caller, and how often each was used",
        (AccessScope.READ_APPROVALS,),
        ListGrants,
        lambda given, _: given,
    ),
    MethodRow(
        "revoke_grant",
        "End a standing approval",
        (AccessScope.GRANT, AccessScope.DECIDE),
        RevokeGrant,
        lambda given, _: given,
        GrantRevoked,
    ),
    MethodRow(
        "set_bypass",
        "Auto-approve everything for a while, except critical or destructive actions",
        (AccessScope.GRANT,),
        SetBypass,
        lambda given, _: given,
        BypassSet,
    ),
    MethodRow(
        "evaluate_permission",
        "What policy would say, and why; nothing is written",
        (AccessScope.READ_APPROVALS, AccessScope.HOST, AccessScope.ASK),
        EvaluatePermission,
        lambda given, _: given,
        model=Judgement,
    ),
    MethodRow(
        "get_tool_inventory",
        "What the caller may use now: agents, their skills, and what policy says",
        (AccessScope.CALL,),
        GetToolInventory,
        lambda given, _: given,
        model=ToolInventory,
    ),
    MethodRow(
        "ask_permission",
        "Ask, as a worker, whether something may be done for a task",
        (AccessScope.ASK,),
        AskPermission,
        lambda given, _: given,
        PermissionView,
    ),
    MethodRow(
        "use_permission",
        "Say, as a worker, that what was allowed is done now",
        (AccessScope.ASK,),
        UsePermission,
        lambda given, _: given,
        PermissionView,
    ),
    MethodRow(
        "withdraw_permission",
        "Withdraw a pending approval, as whoever asked for it",
        (AccessScope.ASK, AccessScope.CALL, AccessScope.WRITE_TASKS),
        WithdrawPermission,
        lambda given, _: given,
        PermissionView,
    ),
    MethodRow(
        "resolve_permission",
        "Resolve an approval by the policy of a host",
        (AccessScope.HOST,),
        ResolvePermission,
        lambda given, _: given,
        PermissionView,
    ),
    MethodRow(
        "see_action",
        "Say that an approval was shown to the caller",
        (AccessScope.READ_APPROVALS,),
        NoteSeen,
        lambda given, _: given,
        SeenNoted,
    ),
    MethodRow(
        "return_again",
        "Try an answer again that could not be delivered",
        (AccessScope.DECIDE,),
        ReturnAgain,
        lambda given, _: given,
        ReturnOwed,
    ),
    MethodRow(
        "mute_peer",
        "Have no pushes for what an agent asks for a while, unless it is grave",
        (AccessScope.READ_APPROVALS,),
        MutePeer,
        lambda given, _: given,
        PeerMuted,
    ),
    MethodRow(
        "unmute_peer",
        "Have pushes again for what an agent asks",
        (AccessScope.READ_APPROVALS,),
        UnmutePeer,
        lambda given, _: given,
        PeerMuted,
    ),
    MethodRow(
        "list_mutes",
        "The agents that the caller has muted",
        (AccessScope.READ_APPROVALS,),
        ListMutes,
        lambda given, _: given,
        model=Mutes,
    ),
    MethodRow(
        "get_action_content",
        "The whole subject of an approval, where the approval itself shows its beginning only",
        (AccessScope.READ_APPROVALS, AccessScope.ASK),
        GetActionContent,
        lambda given, _: given,
        model=ActionContent,
    ),
    MethodRow(
        "explain_action",
        "Why an approval was asked for, what every source said, and how it ended",
        (AccessScope.READ_APPROVALS,),
        ExplainAction,
        lambda given, _: given,
    ),
    MethodRow(
        "try_policy",
        "What other rules would have said to what was asked lately",
        (AccessScope.READ_APPROVALS,),
        TryPolicy,
        lambda given, _: given,
        model=PolicyTried,
    ),
    MethodRow(
        "get_policy",
        "The rules that are in force for the work of the caller",
        (AccessScope.READ_AUDIT, AccessScope.OPERATE, AccessScope.WRITE_POLICY),
        GetPolicy,
        lambda given, _: given,
        model=PolicyView,
    ),
    MethodRow(
        "set_policy",
        "Put rules beside those of the configuration, for every instance, or say what that would change",
        (AccessScope.WRITE_POLICY,),
        SetPolicy,
        lambda given, _: given,
        PolicySet,
    ),
    MethodRow(
        "get_permissions",
        "What may be done in a thread, and who is asked at this moment",
        (AccessScope.READ_TASKS,),
        GetPermissions,
        lambda given, _: given,
        model=PermissionSummary,
    ),
)


_MANAGE: Final = (AccessScope.MANAGE_DEVICES,)
_LOOK: Final = (AccessScope.MANAGE_DEVICES, AccessScope.READ_APPROVALS, AccessScope.DECIDE)
_SUBSCRIBE: Final = (AccessScope.MANAGE_DEVICES, AccessScope.CONNECT)
"""A device may say where it takes pushes; for others it takes the right to manage them."""


def _row(
    name: str,
    summary: str,
    scopes: tuple[AccessScope, ...],
    params: type[Any],
    result: type[Any] | None = DeviceChanged,
) -> MethodRow:
    return MethodRow(name, summary, scopes, params, lambda given, _: given, result)


def _read_audit(params: AuditParams, _caller: Caller) -> GetAudit:
    before = read_position(params.page_token) if params.page_token else None
    return GetAudit(params.action_id, choose_size(params.page_size, params.limit, 200), before)


DEVICE_ROWS: Final[Sequence[MethodRow]] = (
    _row("list_devices", "The devices of the caller", _LOOK, ListDevices, None),
    MethodRow(
        "get_audit",
        "How an approval was decided: its recorded events, and what proves them",
        (AccessScope.READ_AUDIT,),
        AuditParams,
        _read_audit,
        model=Audit,
    ),
    _row("get_push_key", "The key that browsers subscribe with", _LOOK, GetPushKey, None),
    _row("pair_device", "Offer a device a code", _MANAGE, PairDevice, DevicePaired),
    _row("confirm_device", "Trust a device by the digits that it shows", _MANAGE, ConfirmDevice),
    _row("rename_device", "Call a device something else", _MANAGE, RenameDevice),
    _row("revoke_device", "Trust a device no more", _MANAGE, RevokeDevice),
    _row("set_device_push", "Where a device takes Web Push", _SUBSCRIBE, SetDevicePush),
    _row("remove_device_push", "Send a device no Web Push", _SUBSCRIBE, RemoveDevicePush),
)
