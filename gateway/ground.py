"""What nearly every part of a service is made from, itself made from its surroundings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from passerelle.delegation.runs.callbacks import Callbacks
from passerelle.delegation.runs.dispatch import Dispatch
from passerelle.delegation.runs.open_text import OpenTexts
from passerelle.delegation.runs.peer_profile import PeerBehaviour
from passerelle.permission_bridge.answers.actions import Actions
from passerelle.permission_bridge.answers.grants import Granting
from passerelle.permission_bridge.devices.assurance import Assurance
from passerelle.permission_bridge.devices.device_lists import DeviceLists
from passerelle.permission_bridge.hooks.consultation import Consulting
from passerelle.runtime.records.contents import Contents
from passerelle.runtime.records.inbox_arrivals import InboxArrivals
from passerelle.runtime.records.ownership import Ownership
from passerelle.runtime.records.references import References
from passerelle.runtime.records.refusals import Refusals
from passerelle.runtime.records.withheld import make_withholding
from passerelle.runtime.records.writes import Writes

if TYPE_CHECKING:
    from passerelle.gateway.surroundings import Surroundings
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.store.store import Store


@dataclass(frozen=True, slots=True)
class Ground:
    """The parts that the others stand on."""

    around: Surroundings
    writes: Writes
    contents: Contents
    ownership: Ownership
    references: References
    dispatch: Dispatch
    lists: DeviceLists
    actions: Actions
    arrivals: InboxArrivals

    @property
    def store(self) -> Store:
        """The store below all of them."""
        return self.around.store


def lay_ground(around: Surroundings, sealer: Sealer | None) -> Ground:
    """The ground of one service; nothing is driven yet."""
    store = around.store
    arrivals = InboxArrivals(store.projections, around.hurry)
    writes = Writes(
        store.log,
        around.clock,
        around.ids,
        store.runtime_id,
        around.tally,
        around.news,
        glimpse=around.glimpse,
        shard_ms=around.shard_ms,
        arrivals=arrivals,
    )
    withholding = make_withholding(sealer, store.blobs, around.ids.draw)
    contents = Contents(store.log, store.blobs, withholding)
    ownership = Ownership(writes, arrivals)
    references, lists = References(ownership, contents), DeviceLists(writes)
    return Ground(
        around=around,
        writes=writes,
        contents=contents,
        ownership=ownership,
        references=references,
        dispatch=_make_dispatch(around, writes, contents, references),
        lists=lists,
        actions=Actions(writes, _make_assurance(around, lists), Refusals(writes), arrivals),
        arrivals=arrivals,
    )


def _make_assurance(around: Surroundings, lists: DeviceLists) -> Assurance:
    return Assurance(lists, around.clock, around.machine, around.signatures)


def _make_dispatch(
    around: Surroundings, writes: Writes, contents: Contents, references: References
) -> Dispatch:
    store = around.store
    return Dispatch(
        writes=writes,
        blobs=store.blobs,
        copies=store.copies,
        uploads=store.uploads,
        contents=contents,
        projections=store.projections,
        clock=around.clock,
        log=structlog.get_logger("passerelle"),
        find_peer=around.find_peer,
        drives=around.drives,
        find_sender=around.find_sender,
        find_terms=around.find_terms,
        find_rules=around.find_rules,
        outputs=around.outputs,
        behaviour=PeerBehaviour(store.habits),
        references=references,
        replicas=store.replicas,
        consulting=Consulting(
            Granting(writes, around.find_rules), around.hooks, around.find_rules, around.clock
        ),
        open_text=OpenTexts(store.deltas, around.clock, around.ids, store.runtime_id),
        timeouts=around.timeouts,
        spending=around.spending,
        callbacks=_make_callbacks(around, writes),
    )


def _make_callbacks(around: Surroundings, writes: Writes) -> Callbacks | None:
    if around.public_url is None:
        return None
    return Callbacks(around.store.callbacks, writes, around.ids, around.clock, around.public_url)
