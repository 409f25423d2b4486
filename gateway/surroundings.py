"""What a service is made from: the surroundings given to it, and the ground laid on them.

What a service stands on: the store, the readers, time and chance, and what the configuration says.

What nearly every part of a service is made from, itself made from its surroundings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from passerelle.control.catalogue import Catalogue
from passerelle.core.message_bounds import MessageBounds
from passerelle.delegation.runs.callbacks import Callbacks
from passerelle.delegation.runs.content_room import DEFAULT_BYTES, ContentRoom
from passerelle.delegation.runs.dispatch import Dispatch
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.open_text import OpenTexts
from passerelle.delegation.runs.outputs import OutputPolicy
from passerelle.delegation.runs.peer_profile import PeerBehaviour
from passerelle.delegation.runs.turns import hold_for_ever
from passerelle.permission_bridge.answers.actions import Actions
from passerelle.permission_bridge.answers.grants import Granting
from passerelle.permission_bridge.devices.assurance import Assurance, Demand
from passerelle.permission_bridge.devices.device_lists import DeviceLists
from passerelle.permission_bridge.devices.pairing import Entrance
from passerelle.permission_bridge.governing.rulebook import Rulebook
from passerelle.permission_bridge.hooks.caller import HookCaller
from passerelle.permission_bridge.hooks.consultation import Consulting
from passerelle.permission_bridge.hooks.hooks import Hooks
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.records.contents import Contents
from passerelle.runtime.records.inbox_arrivals import InboxArrivals
from passerelle.runtime.records.ownership import Ownership
from passerelle.runtime.records.references import References
from passerelle.runtime.records.refusals import Refusals
from passerelle.runtime.records.withheld import make_withholding
from passerelle.runtime.records.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.channels.hub import Hub
    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.approval import Risk
    from passerelle.core.peer import Peer
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.peer_profile import PeerTerms
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.glimpse import Glimpse
    from passerelle.store.store import Store
    from passerelle.webhooks.notifier import Notifier
    from passerelle.webhooks.sender import WebhookSender


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a service stands on."""

    store: Store
    hub: Hub
    clock: Clock
    """Time of the store: what becomes a deadline or a timestamp."""
    ids: Ids
    find_peer: Callable[[str], Peer]
    drives: Callable[[Shard], Incarnation]
    find_sender: Callable[[Shard], Incarnation | None]
    find_terms: Callable[[str], PeerTerms]
    """What the configuration says of an agent."""
    find_rules: Callable[[], Policy]
    timeouts: Timeouts
    tally: Callable[[str, float, str], None]
    news: Callable[[Shard], None]
    glimpse: Callable[[Glimpse], None] = lambda _glimpse: None
    """Told of questions that were stored here, so that the relay need not read them."""
    hurry: Callable[[Shard], None] = lambda _shard: None
    """Has the relay visit a shard at once, where its duty is ours."""
    outputs: OutputPolicy = field(default_factory=OutputPolicy)
    regain: Callable[[Shard], Awaitable[None]] = hold_for_ever
    """Has a lease extended that has run out unseen."""
    content_bytes: int = DEFAULT_BYTES
    """What all runs may hold of their tasks together."""
    catalogue: Catalogue = field(default_factory=Catalogue)
    spending: Spending | None = None
    message_bounds: MessageBounds = field(default_factory=MessageBounds)
    rulebook: Rulebook = field(default_factory=Rulebook)
    list_callers: Callable[[], tuple[Principal, ...]] = lambda: ()
    """Whom the configuration names."""
    hooks: Hooks = field(default_factory=lambda: Hooks(HookCaller()))
    """Calls code of the operator's."""
    public_url: str | None = None
    """Where peers can call back; None: they cannot."""
    push_sender: WebhookSender | None = None
    """What Web Push goes through; None: there is none."""
    push_contact: str = ""
    buttons: Risk = "low"
    """Up to which risk notifications have buttons."""
    notifiers: tuple[Notifier, ...] = ()
    """Receivers of questions that the operator has set."""
    signatures: Demand = "paired"
    """Of whom signed decisions are wanted."""
    find_principal: Callable[[str, str], Principal | None] = lambda _id, _tenant: None
    """A principal by id and tenant, as far as the configuration says; None where it is not in there."""
    shard_ms: Callable[[Shard], int] | None = None
    """The clock of a shard's primary, in ms; None: ``clock`` is that of all."""
    machine: Clock = field(default_factory=SystemClock)
    """Time of this machine: what others judge by their own, such as signatures."""
    find_entrance: Callable[[], Entrance] = Entrance
    """Where devices come in."""


@dataclass(frozen=True, slots=True)
class CoreServices:
    """The parts that the others stand on."""

    around: Dependencies
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


def lay_ground(around: Dependencies, sealer: Sealer | None) -> CoreServices:
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
    return CoreServices(
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


def _make_assurance(around: Dependencies, lists: DeviceLists) -> Assurance:
    return Assurance(lists, around.clock, around.machine, around.signatures)


def _make_dispatch(
    around: Dependencies, writes: Writes, contents: Contents, references: References
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
        content_room=ContentRoom(around.content_bytes),
        spending=around.spending,
        callbacks=_make_callbacks(around, writes),
    )


def _make_callbacks(around: Dependencies, writes: Writes) -> Callbacks | None:
    if around.public_url is None:
        return None
    return Callbacks(around.store.callbacks, writes, around.ids, around.clock, around.public_url)
