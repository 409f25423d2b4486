"""The store as a whole: opened once, checked once, probed for readiness, closed once.

Over an operator's server or cluster, or over the embedded engine: the same code path.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Self

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store import keys
from passerelle.store.acks import RedisAcks
from passerelle.store.agents import RedisAgentReports, RedisAgents
from passerelle.store.archive.archiver import Archiver
from passerelle.store.archive.ended_sessions import EndedSessions
from passerelle.store.archive.forgetting import Forgetting
from passerelle.store.archive.owner_home import HomeFinder
from passerelle.store.archive.owner_keys import OwnerKeys
from passerelle.store.archive.owner_survey import SessionFinder
from passerelle.store.archive.participation import ParticipationFinder
from passerelle.store.archive.place import is_shared_place
from passerelle.store.archive.reader import Archive
from passerelle.store.archive.segment_cleanup import SegmentCleanup
from passerelle.store.archive.segment_merge import SegmentMerge
from passerelle.store.archive.session_forgetting import SessionForgetting
from passerelle.store.archive.session_survey import SessionSurvey
from passerelle.store.archive.session_tombstones import SessionTombstones
from passerelle.store.archive.tombstones import Tombstones
from passerelle.store.archive.traces import TraceRemoval
from passerelle.store.blobs import BlobStores
from passerelle.store.channels import RedisChannels, RedisLinks, RedisPresences
from passerelle.store.clock import StoreClock
from passerelle.store.connection import pack
from passerelle.store.due import RedisDueRows, RedisShardPoll
from passerelle.store.exports.exporter import Exporter
from passerelle.store.exports.importer import Importer
from passerelle.store.exports.session_source import SessionSource
from passerelle.store.failures import retry
from passerelle.store.fullness import StoreMemory
from passerelle.store.inboxes import RedisInboxes
from passerelle.store.info import ServerFacts, parse_info, read_facts, refuse_unfit
from passerelle.store.inventory import RedisInventory
from passerelle.store.leases import RedisLeases
from passerelle.store.limits import RedisLimits
from passerelle.store.list_surveys import RedisListSurveys
from passerelle.store.log import RedisEventLog, RedisFactReader
from passerelle.store.log_rewrite import rewrite_logs
from passerelle.store.maintenance import RedisInspection, RedisViews
from passerelle.store.nodes import Nodes
from passerelle.store.peers import RedisCallbacks, RedisHabits
from passerelle.store.projections import RedisProjections
from passerelle.store.pubsub import RedisDeltas, RedisNudges, RedisRuleUpdates
from passerelle.store.pushes import RedisBundles, RedisMutes
from passerelle.store.queues import RedisQueues
from passerelle.store.replicas import ALONE_AFTER_S, RedisReplicas
from passerelle.store.replies import as_int, as_text
from passerelle.store.retention import RedisRetention
from passerelle.store.rights import refuse_missing_rights
from passerelle.store.schema_upgrade import complete_heads
from passerelle.store.scripts import read_all_scripts
from passerelle.store.sealed_values import RedisOwnerTokens, RedisPushKeys, RedisTickets
from passerelle.store.stream_hints import StreamHints
from passerelle.store.targets import RedisTargets
from passerelle.store.topology import read_seeds
from passerelle.store.uploads import RedisUploads

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.store.archive.owner_keys import KeySealer
    from passerelle.store.blobs import BlobStore
    from passerelle.store.exports.form import PartKind
    from passerelle.store.info import StoreDurability
    from passerelle.store.nodes import Node

_PROBE_MS = 5_000


@frozen
class StoreSettings:
    """``url`` is parsed by ``store.topology``. Blobs need a folder shared by all instances, or a bucket.

    ``batches`` counts exchanges with the store by how many calls they contain.
    """

    url: str
    blobs: Path | str
    durability: StoreDurability = "aof"
    """What makes the server's data durable."""
    replicated_acts: bool = True
    """Irreversible acts wait for a replica, if there are any."""
    alone_after_s: float | None = ALONE_AFTER_S
    """How long they wait at a promoted server without a replica, in seconds; None: until it has one."""
    batches: Counter[int] = field(default_factory=Counter[int])
    owns_engine: bool = False
    """Whether the engine is embedded: its files are then rewritten once something is forgotten."""
    sealer: KeySealer | None = None
    """Seals the data keys of owners; without one they are stored in plain form."""


class Store:
    """Every port of ``core.ports`` over one server or cluster."""

    def __init__(
        self,
        nodes: Nodes,
        stored: BlobStores,
        sealer: KeySealer | None = None,
        *,
        owns_engine: bool = False,
    ) -> None:
        segments = stored.segments
        self.nodes = nodes
        self.runtime_id = ""
        self.owner_keys = OwnerKeys(nodes, sealer)
        self.archive = Archive(nodes.query_all, segments, self.owner_keys)
        self.log = RedisEventLog(nodes, self.archive)
        self.segment_cleanup = SegmentCleanup(nodes, segments)
        self.segment_merge = SegmentMerge.over(nodes, segments, self.owner_keys)
        self.ended_sessions = EndedSessions(nodes)
        self.archiver = Archiver(
            nodes, segments, self.segment_cleanup, self.owner_keys, self.log.note_left
        )
        self.tombstones = Tombstones(nodes, stored.tombstones)
        finder = SessionFinder(nodes, self.archive, self.owner_keys, HomeFinder(nodes))
        self.forgetting, self.session_forgetting = self._open_forgetting(
            finder, stored, owns_engine=owns_engine
        )
        self.exporter, self.importer = self._open_exports(finder, stored)
        self.hints = StreamHints(nodes)
        self.deltas = RedisDeltas(nodes, self.hints)
        self.leases = RedisLeases(nodes)
        self.clock = StoreClock(nodes)
        self.due = RedisDueRows(nodes)
        self.shard_poll = RedisShardPoll(nodes)
        self.projections = RedisProjections(nodes, self.log)
        self.relay_facts = RedisFactReader(
            nodes.query_in_background,
            Archive(nodes.query_in_background, segments, self.owner_keys),
        )
        self.relay_projections = RedisProjections(nodes, self.log, yields=True)
        self.acks = RedisAcks(nodes, self.archive)
        self.channels = RedisChannels(nodes, self.hints)
        self.links = RedisLinks(nodes)
        self.agents = RedisAgents(nodes, self.hints)
        self.nudges = RedisNudges(nodes, self.hints)
        self.rule_news = RedisRuleUpdates(nodes, self.hints)
        self.presences = RedisPresences(nodes)
        self.tickets = RedisTickets(nodes)
        self.mutes = RedisMutes(nodes)
        self.bundles = RedisBundles(nodes)
        self.push_keys = RedisPushKeys(nodes)
        self.owner_tokens = RedisOwnerTokens(nodes, self.hints)
        self.limits, self.queues = RedisLimits(nodes), RedisQueues(nodes)
        self.targets = RedisTargets(nodes, self.archive)
        self.callbacks = RedisCallbacks(nodes)
        self.habits = RedisHabits(nodes)
        self.replicas = RedisReplicas(nodes)
        self.memory = StoreMemory(nodes)
        self.retention = RedisRetention(nodes)
        self.inboxes = RedisInboxes(nodes)
        self.inspection = RedisInspection(nodes)
        self.inventory = RedisInventory(nodes)
        self.views = RedisViews(nodes)
        self.blobs, self.copies = stored.blobs, stored.copies
        self.blob_failures = stored.failures
        self.uploads = RedisUploads(nodes, stored.uploads)

    @property
    def list_surveys(self) -> RedisListSurveys:
        """Surveys many lists at once."""
        return RedisListSurveys(self.nodes)

    @property
    def agent_reports(self) -> RedisAgentReports:
        """Agent observations that instances share."""
        return RedisAgentReports(self.nodes)

    def _open_forgetting(
        self, finder: SessionFinder, stored: BlobStores, *, owns_engine: bool
    ) -> tuple[Forgetting, SessionForgetting]:
        nodes = self.nodes
        removal = TraceRemoval(nodes, finder, (stored.blobs, stored.copies))
        rewrite = partial(rewrite_logs, nodes) if owns_engine else None
        forgetting = Forgetting(
            nodes,
            self.owner_keys,
            finder,
            self.tombstones,
            removal,
            ParticipationFinder(nodes, self.archive),
            rewrite,
        )
        session_forgetting = SessionForgetting(
            nodes,
            SessionSurvey(finder),
            SessionTombstones(nodes, self.owner_keys, stored.tombstones),
            self.tombstones,
            removal,
            self.segment_merge.erasure,
            rewrite,
        )
        return forgetting, session_forgetting

    def _open_exports(self, finder: SessionFinder, stored: BlobStores) -> tuple[Exporter, Importer]:
        source = SessionSource(self.nodes, self.archive, finder, self.tombstones)
        content: dict[PartKind, BlobStore] = {"content": stored.blobs, "copies": stored.copies}
        importer = Importer(
            self.nodes,
            source,
            self.owner_keys,
            self.tombstones,
            self.session_forgetting.tombstones,
            content,
        )
        return Exporter(source, self.tombstones, content), importer

    @classmethod
    async def open(cls, settings: StoreSettings) -> Self:
        """Connects, checks that the server keeps its data, and reads the runtime id.

        Raises:
            ConfigInvalid: the server is too old, a replica, evicts, is not durable or lacks a right of the user; or the
                blobs have no valid place.
            StoreUnavailable: it cannot be reached, or cannot write.
        """
        seeds = read_seeds(settings.url)
        stored = BlobStores.open(settings.blobs)
        nodes = await Nodes.open(seeds, read_all_scripts(), settings.batches)
        store = cls(nodes, stored, settings.sealer, owns_engine=settings.owns_engine)
        store.replicas.counts = settings.replicated_acts
        store.replicas.alone_after_s = settings.alone_after_s
        store.replicas.durability = settings.durability
        try:
            for node, facts in (await store.read_facts()).items():
                refuse_unfit(facts, node.endpoint.name, settings.durability)
            await refuse_missing_rights(nodes)
            await retry(store.replicas.look)
            await retry(store.probe)
            await store.blobs.probe()
            await store._adopt_runtime()
            store.owner_keys.runtime_id = store.tombstones.runtime_id = store.runtime_id
            await store.log.read_epochs()
        except BaseException:
            await store.close()
            raise
        return store

    @classmethod
    async def examine(cls, url: str, durability: StoreDurability = "aof") -> int:
        """Checks a server as ``open`` does, but writes nothing; returns the number of primaries.

        Raises:
            ConfigInvalid, StoreUnavailable: as ``open`` does.
        """
        nodes = await Nodes.open(read_seeds(url), read_all_scripts())
        try:
            found = await _read_facts(nodes)
            for node, facts in found.items():
                refuse_unfit(facts, node.endpoint.name, durability)
            await refuse_missing_rights(nodes)
            return len(found)
        finally:
            await nodes.close()

    async def read_facts(self) -> dict[Node, ServerFacts]:
        """The facts that each primary reports.

        Raises:
            StoreUnavailable: one does not answer.
        """
        return await _read_facts(self.nodes)

    async def shares_archive(self) -> bool:
        """Whether this instance shares the archive with all others.

        Raises:
            StoreUnavailable: the engine or the archive does not answer.
        """
        return await is_shared_place(self.nodes, self.archiver.segments)

    async def probe(self) -> None:
        """Readiness: a write on each primary. PING passes on a read-only replica, so it proves nothing.

        Raises:
            StoreUnavailable: a primary cannot write.
        """
        homes = {self.nodes.node(shard): shard for shard in ALL_SHARDS}
        await asyncio.gather(
            *(
                self.nodes.write(shard, pack("SET", keys.probe(shard), "1", "PX", _PROBE_MS))
                for shard in homes.values()
            )
        )

    async def close(self) -> None:
        """Ends hints, waits for running calls, closes all connections."""
        await self.hints.close()
        await self.nodes.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _adopt_runtime(self) -> None:
        """Every process over one store belongs to the same runtime: the first one names it."""
        home = Shard(0)
        mint = pack("SET", keys.runtime(), f"rt_{secrets.token_hex(8)}", "NX")
        await self.nodes.update(home, mint)
        schema = pack("HSETNX", keys.meta(home), "schema", keys.SCHEMA)
        await self.nodes.update(home, schema)
        name, found = await self.nodes.read(
            home, pack("GET", keys.runtime()), pack("HGET", keys.meta(home), "schema")
        )
        self.runtime_id = as_text(name)
        stored = as_int(found)
        if stored > keys.SCHEMA:
            raise ConfigInvalid(
                "redis_url", f"the store has schema {stored}, this version knows {keys.SCHEMA}"
            )
        if stored < keys.SCHEMA:
            await complete_heads(self.nodes, stored)
            # From here on the store may have data that an earlier version cannot read.
            raised = pack("HSET", keys.meta(home), "schema", keys.SCHEMA)
            await self.nodes.update(home, raised)


async def _read_facts(nodes: Nodes) -> dict[Node, ServerFacts]:
    asked = (partial(node.reads.call, pack("INFO")) for node in nodes.all)
    answers = await asyncio.gather(*map(retry, asked))
    return {
        node: read_facts(parse_info(answer[0]))
        for node, answer in zip(nodes.all, answers, strict=True)
    }
