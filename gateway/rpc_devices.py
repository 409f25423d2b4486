"""The calls about devices, and about what was decided. Their parameters are the commands and queries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.core.approval.requests import Audit, GetAudit
from passerelle.core.principal import Scope
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
from passerelle.runtime.common.calls import Call

_MANAGE: Final = (Scope.MANAGE_DEVICES,)
_LOOK: Final = (Scope.MANAGE_DEVICES, Scope.READ_APPROVALS, Scope.DECIDE)
_SUBSCRIBE: Final = (Scope.MANAGE_DEVICES, Scope.CONNECT)
"""A device may say where it takes pushes; for others it takes the right to manage them."""


def _row(
    name: str,
    summary: str,
    scopes: tuple[Scope, ...],
    params: type[Any],
    result: type[Any] | None = DeviceChanged,
) -> Call:
    return Call(name, summary, scopes, params, lambda given, _: given, result)


DEVICE_ROWS: Final[Sequence[Call]] = (
    _row("list_devices", "The devices of the caller", _LOOK, ListDevices, None),
    Call(
        "get_audit",
        "How a question came to be decided: its facts, and what proves them",
        (Scope.READ_AUDIT,),
        GetAudit,
        lambda given, _: given,
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
