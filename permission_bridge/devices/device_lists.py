"""The stored device list of a principal: read before every decision, changed through the one write path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound
from passerelle.core.frozen import frozen
from passerelle.core.payloads.conversation import SessionCreated
from passerelle.core.session import device as devices
from passerelle.core.session import machine as sessions
from passerelle.core.session.device import DeviceList, name_list
from passerelle.core.session.machine import BeginSession
from passerelle.runtime.records.places import TITLE, name_home
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from passerelle.core.batch import IdempotencyRow
    from passerelle.core.decision import Decision, Held
    from passerelle.core.principal import Principal
    from passerelle.core.session.device import DeviceCommand
    from passerelle.runtime.records.writes import Writes


@frozen
class DeviceLists:
    """Device lists in the store, without a cache: a revocation takes effect at once."""

    writes: Writes

    async def load(self, principal: Principal) -> DeviceList | None:
        """The devices of a principal; None if it never had one."""
        return await self.load_by_id(name_list(principal))

    async def load_by_id(self, list_id: str) -> DeviceList | None:
        """The list with that id."""
        (found,) = (await self.load_all([list_id])).values()
        return found

    async def load_all(
        self, list_ids: Iterable[str], known: Mapping[EntityRef, Held] | None = None
    ) -> dict[str, DeviceList | None]:
        """Several lists, in one round trip; lists in ``known`` are not read again."""
        refs, known = [refer(one) for one in list_ids], known or {}
        missing = [ref for ref in refs if ref not in known]
        held = {**known, **(await self.writes.load(missing) if missing else {})}
        records = {ref.id: held[ref].record for ref in refs}
        return {name: one if isinstance(one, DeviceList) else None for name, one in records.items()}

    async def load_fields(self, list_id: str) -> dict[str, bytes]:
        """The other fields of the stored list: sealed secrets of its devices."""
        ref = refer(list_id)
        return {**(await self.writes.load_one(ref)).fields}

    async def change(
        self,
        whose: Principal,
        command: DeviceCommand,
        actor: str,
        *,
        not_after_ms: int | None = None,
        fields: Callable[[DeviceList], dict[str, bytes | None]] | None = None,
        idem: IdempotencyRow | None = None,
    ) -> DeviceList:
        """Carries out a command; ``fields`` returns further fields of the stored hash, from the list before it.

        If the key of ``idem`` was used meanwhile, nothing is written and the current list is returned.

        Raises:
            NotFound, UnsupportedOperation, InvalidInput: nothing is written.
        """
        session = name_home(whose)
        home = EntityRef(EntityKind.SESSION, session)
        ref = refer(name_list(whose))

        def body(decision: Decision) -> AppendOptions:
            known = decision.state(ref)
            state = known if isinstance(known, DeviceList) else None
            facts = devices.decide(state, command, actor, session, decision.now_ms)
            if decision.state(home) is None:
                created = SessionCreated(whose.key, whose.tenant, whose.id, TITLE)
                decision.add(sessions.decide(None, BeginSession(session, created)))
            decision.add(facts)
            for name, value in fields(state).items() if fields and state else ():
                decision.set_field(ref, name, value)
            return AppendOptions(not_after_ms=not_after_ms, idem=idem)

        outcome = await self.writes.decide(session, [home, ref], body)
        record = outcome.held[ref].record if isinstance(outcome, Written) else None
        if not isinstance(record, DeviceList):
            # Too late by the store's clock, which decides.
            raise NotFound("code", "")
        return record


def refer(list_id: str) -> EntityRef:
    """The entity of a list."""
    return EntityRef(EntityKind.DEVICES, list_id)
