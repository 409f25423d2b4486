"""What a service stands on: the store, the readers, time and chance, and what the configuration says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.control.catalogue import Catalogue
from passerelle.core.message_bounds import MessageBounds
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.outputs import OutputPolicy
from passerelle.permission_bridge.devices.assurance import Demand
from passerelle.permission_bridge.devices.pairing import Entrance
from passerelle.permission_bridge.governing.rulebook import Rulebook
from passerelle.permission_bridge.hooks.caller import HookCaller
from passerelle.permission_bridge.hooks.hooks import Hooks
from passerelle.runtime.common.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.hub import Hub
    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.approval import Risk
    from passerelle.core.peer import Peer
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.peer_profile import PeerTerms
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.glimpse import Glimpse
    from passerelle.store.store import Store
    from passerelle.webhooks.notifier import Notifier
    from passerelle.webhooks.sender import WebhookSender


@dataclass(frozen=True, slots=True)
class Surroundings:
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
