"""Verifies who answers: the device is read before every decision, and its signature is checked (CHN-8).

A signature is required from ``high`` risk on, for approvals. By default the requirement starts with the first paired
device of a principal: a principal without one could never sign, and so never answer.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.approval.signed_decision import compose_decision
from passerelle.core.errors import Forbidden
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import DecisionSignature
from passerelle.core.payloads.device import EVERYTHING, DeviceRights, reaches
from passerelle.core.principal import Principal
from passerelle.core.session.device import name_list
from passerelle.permission_bridge.devices.device_keys import holds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.batch import EntityRef
    from passerelle.core.commands import RespondAction
    from passerelle.core.decision import Held
    from passerelle.core.payloads.approval import Risk
    from passerelle.core.payloads.device import Device
    from passerelle.core.ports.chance import Clock
    from passerelle.core.session.device import DeviceList
    from passerelle.permission_bridge.devices.device_lists import DeviceLists

Demand: TypeAlias = Literal["paired", "always", "never"]
"""Who must sign: principals that have a device with a key, everybody, or nobody."""

BELOW: Final[Risk] = "medium"
"""Answers up to this risk need no signature."""

CLOCK_SLACK_MS: Final = 300_000
"""Tolerated deviation of a device's clock."""


@frozen
class Assured:
    """The verified sender of an answer, and the rights of its device."""

    who: Principal
    rights: DeviceRights = EVERYTHING
    signature: DecisionSignature | None = None
    must_sign: bool = False
    void: frozenset[str] = field(default_factory=frozenset[str])


@frozen
class Assurance:
    """Verifies answers by the devices that they come from."""

    lists: DeviceLists
    clock: Clock
    """The store's time, by which requests are opened."""
    machine: Clock
    """The time of this machine: device clocks are compared with it."""
    demand: Demand

    async def judge(
        self,
        principal: Principal,
        answer: RespondAction,
        record: ActionRecord,
        known: Mapping[EntityRef, Held] | None = None,
    ) -> Assured:
        """Verifies an answer to a request; ``known`` are device lists that were read already.

        Raises:
            Forbidden: the device was revoked, or it did not sign this answer.
            StoreUnavailable: whether the device is still active is unknown.
        """
        mine = name_list(principal)
        voters = self._list_voters(record)
        looks = principal.paired or answer.signature is not None or self._may_demand(record)
        wanted = [*({mine} if looks else set[str]()), *voters]
        if not wanted:
            return Assured(principal)
        lists = await self.lists.load_all(dict.fromkeys(wanted), known)
        own = lists.get(mine)
        device = _find_device(principal, answer, own)
        signature = _verify(answer, record, device)
        if signature is not None:
            self._judge_time(signature, record)
        return Assured(
            who=_name_device(principal, device),
            rights=device.rights if device else EVERYTHING,
            signature=signature,
            must_sign=self._demands(record, own),
            void=_list_void(lists, voters),
        )

    def _judge_time(self, signature: DecisionSignature, record: ActionRecord) -> None:
        """A signature must not be older than the request, nor lie in the future."""
        now_ms = self.machine.now_ms()
        opened_ms = now_ms - (self.clock.now_ms() - record.request.created_ms)
        if not opened_ms - CLOCK_SLACK_MS <= signature.iat <= now_ms + CLOCK_SLACK_MS:
            message = (
                "signature.iat is before the approval or in the future: set the device's clock"
            )
            raise Forbidden(message, why="signature_time")

    def _may_demand(self, record: ActionRecord) -> bool:
        return self.demand != "never" and not reaches(BELOW, record.request.risk)

    def _demands(self, record: ActionRecord, own: DeviceList | None) -> bool:
        able = self.demand == "always" or (own is not None and own.has_keys)
        return able and self._may_demand(record)

    def _list_voters(self, record: ActionRecord) -> dict[str, str]:
        """The device lists of principals that voted from a device, with that device."""
        tenant = record.request.tenant
        return {
            name_list(Principal(vote.principal, tenant)): vote.device
            for vote in record.votes
            if vote.device is not None
        }


def _find_device(
    principal: Principal, answer: RespondAction, own: DeviceList | None
) -> Device | None:
    named = answer.signature.device_id if answer.signature else None
    if principal.paired:
        if named not in {None, principal.device}:
            raise Forbidden("another device has signed this", why="bad_signature")
        named = principal.device
    if named is None:
        return None
    device = own.find(named) if own else None
    if device is None or not device.is_active:
        raise Forbidden("this device was revoked, or is not yours", why="device_revoked")
    return device


def _name_device(principal: Principal, device: Device | None) -> Principal:
    if device is None:
        return principal
    return replace(principal, device=device.device_id, device_name=device.name)


def _verify(
    answer: RespondAction, record: ActionRecord, device: Device | None
) -> DecisionSignature | None:
    signed = answer.signature
    if signed is None:
        return None
    key = device.key if device else None
    option = answer.option_id or _find_answering(record)
    if (
        device is None
        or key is None
        or not holds(
            key, compose_decision(answer, option, device.device_id, signed.iat), signed.value
        )
    ):
        raise Forbidden("the signature is not that of this answer", why="bad_signature")
    return DecisionSignature(key.key_id, signed.value, signed.iat)


def _find_answering(record: ActionRecord) -> str | None:
    """The only answering option, if the answer names none."""
    answering = [one.option_id for one in record.request.options if one.kind == "answer"]
    return answering[0] if len(answering) == 1 else None


def _list_void(lists: dict[str, DeviceList | None], voters: dict[str, str]) -> frozenset[str]:
    """Devices that have voted and were revoked since; a device name that was never paired cannot be revoked."""
    found = ((lists.get(name), device) for name, device in voters.items())
    listed = (known.find(device) for known, device in found if known is not None)
    return frozenset(one.device_id for one in listed if one is not None and not one.is_active)
