"""The calls about policy (grants, and the temporary mode), devices, and recorded decisions.

Their parameters are the commands and queries themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
        "The standing approvals of the caller, with their uses",
        (AccessScope.READ_APPROVALS,),
        ListGrants,
    ),
    MethodRow(
        "revoke_grant",
        "End a standing approval",
        (AccessScope.GRANT, AccessScope.DECIDE),
        RevokeGrant,
        GrantRevoked,
    ),
    MethodRow(
        "set_bypass",
        "Auto-approve everything for a while, except critical or destructive actions",
        (AccessScope.GRANT,),
        SetBypass,
        BypassSet,
    ),
    MethodRow(
        "evaluate_permission",
        "What policy would decide, and why; nothing is recorded",
        (AccessScope.READ_APPROVALS, AccessScope.HOST, AccessScope.ASK),
        EvaluatePermission,
        model=Judgement,
    ),
    MethodRow(
        "get_tool_inventory",
        "What the caller may use now: agents, skills, and policy",
        (AccessScope.CALL,),
        GetToolInventory,
        model=ToolInventory,
    ),
    MethodRow(
        "ask_permission",
        "Request approval for an action of a task, as a worker",
        (AccessScope.ASK,),
        AskPermission,
        PermissionView,
    ),
    MethodRow(
        "use_permission",
        "Use an approval, as a worker, right before the action",
        (AccessScope.ASK,),
        UsePermission,
        PermissionView,
    ),
    MethodRow(
        "withdraw_permission",
        "Withdraw a pending approval, as its requester",
        (AccessScope.ASK, AccessScope.CALL, AccessScope.WRITE_TASKS),
        WithdrawPermission,
        PermissionView,
    ),
    MethodRow(
        "resolve_permission",
        "Resolve an approval by the policy of a host",
        (AccessScope.HOST,),
        ResolvePermission,
        PermissionView,
    ),
    MethodRow(
        "see_action",
        "Record that an approval was shown to the caller",
        (AccessScope.READ_APPROVALS,),
        NoteSeen,
        SeenNoted,
    ),
    MethodRow(
        "return_again",
        "Retry delivery of a decision to the agent",
        (AccessScope.DECIDE,),
        ReturnAgain,
        ReturnOwed,
    ),
    MethodRow(
        "mute_peer",
        "Send no pushes for requests of an agent for a while, except of high and critical risk",
        (AccessScope.READ_APPROVALS,),
        MutePeer,
        PeerMuted,
    ),
    MethodRow(
        "unmute_peer",
        "Send pushes for requests of an agent again",
        (AccessScope.READ_APPROVALS,),
        UnmutePeer,
        PeerMuted,
    ),
    MethodRow(
        "list_mutes",
        "The agents that the caller has muted",
        (AccessScope.READ_APPROVALS,),
        ListMutes,
        model=Mutes,
    ),
    MethodRow(
        "get_action_content",
        "The whole subject of an approval that shows only its beginning",
        (AccessScope.READ_APPROVALS, AccessScope.ASK),
        GetActionContent,
        model=ActionContent,
    ),
    MethodRow(
        "explain_action",
        "Why an approval was requested, the result of each source, and how it ended",
        (AccessScope.READ_APPROVALS,),
        ExplainAction,
    ),
    MethodRow(
        "try_policy",
        "What other rules would have decided about recent requests",
        (AccessScope.READ_APPROVALS,),
        TryPolicy,
        model=PolicyTried,
    ),
    MethodRow(
        "get_policy",
        "The rules in force for the work of the caller",
        (AccessScope.READ_AUDIT, AccessScope.OPERATE, AccessScope.WRITE_POLICY),
        GetPolicy,
        model=PolicyView,
    ),
    MethodRow(
        "set_policy",
        "Replace the edited rules at every instance, or show what that would change",
        (AccessScope.WRITE_POLICY,),
        SetPolicy,
        PolicySet,
    ),
    MethodRow(
        "get_permissions",
        "Permissions of a thread, and its pending approvals",
        (AccessScope.READ_TASKS,),
        GetPermissions,
        model=PermissionSummary,
    ),
)


_MANAGE: Final = (AccessScope.MANAGE_DEVICES,)
_LOOK: Final = (AccessScope.MANAGE_DEVICES, AccessScope.READ_APPROVALS, AccessScope.DECIDE)
_SUBSCRIBE: Final = (AccessScope.MANAGE_DEVICES, AccessScope.CONNECT)
"""A device may set its own push subscription; setting that of another one needs the right to manage devices."""


def _read_audit(params: AuditParams, _caller: Caller) -> GetAudit:
    before = read_position(params.page_token) if params.page_token else None
    return GetAudit(params.action_id, choose_size(params.page_size, params.limit, 200), before)


DEVICE_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow("list_devices", "The devices of the caller", _LOOK, ListDevices),
    MethodRow(
        "get_audit",
        "How an approval was decided: its recorded events, and what proves them",
        (AccessScope.READ_AUDIT,),
        AuditParams,
        read=_read_audit,
        model=Audit,
    ),
    MethodRow("get_push_key", "The key that browsers subscribe with", _LOOK, GetPushKey),
    MethodRow(
        "pair_device", "Create a pairing code for a device", _MANAGE, PairDevice, DevicePaired
    ),
    MethodRow(
        "confirm_device",
        "Confirm a device by the digits that it shows",
        _MANAGE,
        ConfirmDevice,
        DeviceChanged,
    ),
    MethodRow("rename_device", "Rename a device", _MANAGE, RenameDevice, DeviceChanged),
    MethodRow("revoke_device", "Revoke a device", _MANAGE, RevokeDevice, DeviceChanged),
    MethodRow(
        "set_device_push",
        "Set the Web Push subscription of a device",
        _SUBSCRIBE,
        SetDevicePush,
        DeviceChanged,
    ),
    MethodRow(
        "remove_device_push",
        "Remove the Web Push subscription of a device",
        _SUBSCRIBE,
        RemoveDevicePush,
        DeviceChanged,
    ),
)
