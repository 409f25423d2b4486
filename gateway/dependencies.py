"""The dependencies of a service: ``Dependencies`` are given to it, ``CoreServices`` are the parts most others need.

Dependencies are the store, the readers, clocks and random numbers, and functions of the configuration.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import structlog

from passerelle.control.catalogue import Catalogue
from passerelle.core.frozen import frozen
from passerelle.core.message_bounds import MessageBounds
from passerelle.core.read_models.overview import RuntimeOverview
from passerelle.delegation.runs.callbacks import Callbacks
from passerelle.delegation.runs.content_budget import DEFAULT_BYTES, ContentBudget
from passerelle.delegation.runs.dispatch import Dispatch
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.open_text import OpenTexts
from passerelle.delegation.runs.outputs import OutputPolicy
from passerelle.delegation.runs.peer_profile import PeerBehaviour
from passerelle.delegation.runs.turns import keep_lease
from passerelle.gateway.capabilities import describe_capabilities
from passerelle.permission_bridge.answers.actions import Actions
from passerelle.permission_bridge.answers.grants import GrantService
from passerelle.permission_bridge.answers.words import AnswerTextPolicy
from passerelle.permission_bridge.devices.assurance import Assurance, Demand
from passerelle.permission_bridge.devices.device_lists import DeviceLists
from passerelle.permission_bridge.devices.pairing import GatewayAddress
from passerelle.permission_bridge.governing.rulebook import Rulebook
from passerelle.permission_bridge.hooks.caller import HookCaller
from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
from passerelle.permission_bridge.hooks.hooks import Hooks
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.common.signatures import Signer
from passerelle.runtime.limits.pauses import AgentPauses
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
    from passerelle.control.agent_health import WatchedAgents, WatchedCalls
    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.approval import Risk
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.capabilities import CapabilityPage
    from passerelle.delegation.runs.admission import LimitedPeer
    from passerelle.delegation.runs.peer_profile import PeerTerms
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.feed_snapshot import FeedSnapshot
    from passerelle.store.store import Store
    from passerelle.webhooks.notifier import Notifier
    from passerelle.webhooks.sender import WebhookSender


@frozen
class Dependencies:
    """What a service depends on."""

    store: Store
    hub: Hub
    clock: Clock
    """The time of the store, for deadlines and timestamps."""
    ids: Ids
    find_peer: Callable[[str], LimitedPeer]
    drives: Callable[[Shard], Incarnation]
    find_sender: Callable[[Shard], Incarnation | None]
    find_terms: Callable[[str], PeerTerms]
    """The settings of an agent by its name."""
    find_rules: Callable[[], Policy]
    timeouts: Timeouts
    spending: Spending
    tally: Callable[[str, float, str], None]
    wake_duties: Callable[[Shard], None]
    on_feed_snapshot: Callable[[FeedSnapshot], None] = lambda _seen: None
    """Called with the feed of questions stored by this instance, so that the relay need not read it."""
    wake_relay: Callable[[Shard], None] = lambda _shard: None
    """Makes the relay visit a shard at once, if this instance owns the shard."""
    outputs: OutputPolicy = field(default_factory=OutputPolicy)
    regain: Callable[[Shard], Awaitable[None]] = keep_lease
    """Renews a lease that expired unnoticed."""
    content_bytes: int = DEFAULT_BYTES
    """Bytes that all runs together may hold of their tasks."""
    catalogue: Catalogue = field(default_factory=Catalogue)
    describe_capabilities: Callable[[], CapabilityPage] = describe_capabilities
    describe_runtime: Callable[[], RuntimeOverview] = RuntimeOverview
    """The state of this instance and of the store, as far as this instance knows."""
    agents: WatchedAgents | None = None
    """The configured agents as this process knows them."""
    calls: WatchedCalls | None = None
    """The results of calls to them."""
    list_instances: Callable[[], tuple[str, ...]] = tuple
    """The live instances including this one, as far as this instance knows."""
    time_decision: Callable[[str, float], None] = lambda _risk, _seconds: None
    """Called with the risk of a question that a person decided, and the seconds it was open."""
    message_bounds: MessageBounds = field(default_factory=MessageBounds)
    rulebook: Rulebook = field(default_factory=Rulebook)
    list_callers: Callable[[], tuple[Principal, ...]] = lambda: ()
    """The callers that the configuration names."""
    pauses: AgentPauses = field(default_factory=AgentPauses)
    """Agents that get no new work: paused or draining."""
    public_url: str | None = None
    """The base URL at which peers call back; None: they cannot."""
    push_sender: WebhookSender | None = None
    """Sends Web Push messages; None: Web Push is off."""
    push_contact: str = ""
    buttons: Risk = "low"
    """The highest risk for which notifications have buttons."""
    notifiers: tuple[Notifier, ...] = ()
    """The notifiers that the operator configured for questions."""
    signatures: Demand = "paired"
    """Which devices must sign decisions."""
    find_principal: Callable[[str, str], Principal | None] = lambda _id, _tenant: None
    """Finds a principal by id and tenant in the configuration; None if it is not there."""
    shard_ms: Callable[[Shard], int] | None = None
    """The clock of a shard's primary, in ms; None: ``clock`` applies to all shards."""
    evidence_signer: Signer = field(default_factory=lambda: Signer(()))
    """Signs evidence bundles."""
    find_gateway_address: Callable[[], GatewayAddress] = GatewayAddress
    """The address and certificate at which devices pair."""


@frozen
class CoreServices:
    """The parts that all others use."""

    deps: Dependencies
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
        """The store of these services."""
        return self.deps.store


def make_core_services(deps: Dependencies, sealer: Sealer | None) -> CoreServices:
    """Builds the core services of one service; no runs are driven yet."""
    store = deps.store
    arrivals = InboxArrivals(store.projections, deps.wake_relay)
    writes = Writes(
        store.log,
        deps.clock,
        deps.ids,
        store.runtime_id,
        deps.tally,
        deps.wake_duties,
        on_feed_snapshot=deps.on_feed_snapshot,
        shard_ms=deps.shard_ms,
        arrivals=arrivals,
    )
    withholding = make_withholding(sealer, store.blobs, deps.ids.draw)
    contents = Contents(store.log, store.blobs, withholding)
    ownership = Ownership(writes, arrivals)
    references, lists = References(ownership, contents), DeviceLists(writes)
    dispatch = _make_dispatch(deps, writes, contents, references)
    words = AnswerTextPolicy(
        writes, store.blobs, dispatch.consulting, lambda agent: deps.find_terms(agent).tags
    )
    return CoreServices(
        deps=deps,
        writes=writes,
        contents=contents,
        ownership=ownership,
        references=references,
        dispatch=dispatch,
        lists=lists,
        actions=Actions(writes, _make_assurance(deps, lists), Refusals(writes), arrivals, words),
        arrivals=arrivals,
    )


def _make_assurance(deps: Dependencies, lists: DeviceLists) -> Assurance:
    return Assurance(lists, deps.clock, SystemClock(), deps.signatures)


def _make_dispatch(
    deps: Dependencies, writes: Writes, contents: Contents, references: References
) -> Dispatch:
    store = deps.store
    return Dispatch(
        writes=writes,
        blobs=store.blobs,
        copies=store.copies,
        uploads=store.uploads,
        contents=contents,
        projections=store.projections,
        clock=deps.clock,
        log=structlog.get_logger("passerelle"),
        find_peer=deps.find_peer,
        drives=deps.drives,
        find_sender=deps.find_sender,
        find_terms=deps.find_terms,
        find_rules=deps.find_rules,
        outputs=deps.outputs,
        behaviour=PeerBehaviour(store.habits),
        references=references,
        replicas=store.replicas,
        consulting=PolicyConsultation(
            GrantService(writes, deps.find_rules), Hooks(HookCaller()), deps.find_rules, deps.clock
        ),
        open_text=OpenTexts(store.deltas, deps.clock, deps.ids, store.runtime_id),
        timeouts=deps.timeouts,
        content_budget=ContentBudget(deps.content_bytes),
        spending=deps.spending,
        callbacks=_make_callbacks(deps, writes),
    )


def _make_callbacks(deps: Dependencies, writes: Writes) -> Callbacks | None:
    if deps.public_url is None:
        return None
    return Callbacks(deps.store.callbacks, writes, deps.ids, deps.clock, deps.public_url)
