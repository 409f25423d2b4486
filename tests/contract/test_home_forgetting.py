"""Erasure of an owner's data outside conversations: home session, devices, grants, rules, links, inbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from passerelle.channels.link_record import LinkRecord
from passerelle.core.batch import Appended, EntityKind, EntityRef, OpenChange
from passerelle.core.errors import InvalidInput
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.ids import ALL_SHARDS, derive_id, shard_of
from passerelle.core.payloads.device import DeviceRights
from passerelle.core.payloads.governance import Grant, PolicyChanged, StatedRule
from passerelle.core.policy.grant import Grants, name_grant, record_grant
from passerelle.core.ports.channels import OwnerForgotten, Presence
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import IndexRow
from passerelle.core.principal import Principal
from passerelle.core.session.device import Offer, name_list
from passerelle.core.wire.codec import to_bytes
from passerelle.permission_bridge.devices.device_lists import DeviceLists
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.records.places import open_home
from passerelle.runtime.records.writes import AppendOptions
from passerelle.store import keys
from passerelle.store.archive.tombstones import LegalHold
from passerelle.store.connection import pack
from passerelle.store.pushes import HeldPush
from passerelle.store.replies import as_hash
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import Story as ArchivedStory
from tests.contract.test_archive import begin, leave, read_all
from tests.contract.test_forgetting import find_names
from tests.contract.test_session_forgetting import (
    copy_engine,
    kill_at,
    list_files,
    put_back,
)
from tests.integration.duties.story import make_writes
from tests.support.engine import Server
from tests.support.killing import Killed
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.core.decision import Decision
    from passerelle.core.ports.channels import ChannelUpdate

pytestmark = pytest.mark.anyio


def make_person(name: str) -> Principal:
    return Principal(name, kind="person")


ADA, BOB = make_person("ada"), make_person("bob")


@dataclass(slots=True)
class Belongings:
    """A person's data outside conversations, with a marker in each item."""

    whose: Principal
    markers: list[str] = field(default_factory=list[str])

    @property
    def channel(self) -> str:
        return derive_id("ch", self.whose.home, self.whose.key, "phone")

    def mark(self, place: str) -> str:
        self.markers.append(f"marker-{self.whose.id}-{place}-{len(self.markers)}-zq")
        return self.markers[-1]

    async def write(self, store: Store) -> None:
        """One item of each kind."""
        who, writes = self.whose, make_writes(store)
        lists = DeviceLists(writes)
        for number in range(2):
            offer = Offer(
                writes.ids.mint("dev", who.home),
                who,
                self.mark("device"),
                (),
                DeviceRights(),
                f"{number}",
            )
            await lists.change(who, offer, who.id)
        home = EntityRef(EntityKind.SESSION, who.home_session)
        grants = EntityRef(EntityKind.GRANTS, home.id)
        rules = EntityRef(EntityKind.RULES, home.id)
        action = writes.ids.mint("act", who.home)
        now_ms = SystemClock().now_ms()
        grant = Grant(
            name_grant(action, who.key),
            action,
            who.id,
            "session",
            home.id,
            "tool_call",
            now_ms,
            now_ms + 600_000,
            "1",
            self.mark("grant"),
        )
        rule = StatedRule(self.mark("rule"), "deny", reason=self.mark("reason"))

        def body(decision: Decision) -> AppendOptions:
            open_home(decision, home, who)
            known = decision.state(grants)
            held = known if isinstance(known, Grants) else None
            decision.add(record_grant(held, Scope(home.id), grant, decision.now_ms))
            changed = PolicyChanged("rules", who.id, "2", rules=(rule,), revision=2)
            decision.add([Fact(Scope(home.id), changed)])
            return AppendOptions()

        await writes.decide(home.id, [home, grants, rules], body)
        await self.connect(store)
        await store.mutes.mute(who.key, self.mark("mute"), 600_000)
        await store.bundles.defer(who.key, HeldPush(action, "a"), 0, now_ms + 600_000)
        inbox = StreamRef(StreamKind.INBOX, who.key)
        await store.acks.store_ack(inbox, self.mark("ack"), 1, "", now_ms)

    async def connect(self, store: Store) -> int:
        """A device of the person sends a hello; returns its generation."""
        who = self.whose
        record = LinkRecord(
            self.channel, "ws", "device", who.key, who.tenant, who.id, (), "", "", "", "phone"
        )
        greeted = await store.channels.record_hello(who.key, self.channel, to_bytes(record), None)
        presence = Presence(self.channel, self.mark("presence"), None, "active")
        await store.presences.announce(who.key, greeted.generation, presence)
        return greeted.generation

    def find(self, server: Server) -> list[str]:
        """Keys that contain data of the person."""
        who = self.whose
        names = (who.key, who.home_session, name_list(who), self.channel, *self.markers)
        return sorted(find_names(server, *names))


async def forget(store: Store, who: Principal = ADA) -> None:
    await store.forgetting.forget(who.key, "operator", SystemClock().now_ms())


async def load_home(store: Store, who: Principal) -> list[object]:
    """The content of a home, as it is read."""
    shard, home = who.home, StreamRef(StreamKind.SESSION, who.home_session)
    refs = [
        EntityRef(EntityKind.SESSION, home.id),
        EntityRef(EntityKind.DEVICES, name_list(who)),
        EntityRef(EntityKind.GRANTS, home.id),
        EntityRef(EntityKind.RULES, home.id),
    ]
    return [
        await store.log.load(refs),
        await store.log.read_page(home, 0),
        await store.channels.list_live(who.key),
        await store.mutes.list_muted(who.key),
        await store.bundles.list_held(who.key),
        await store.nodes.query(shard, pack("HGETALL", keys.presence(shard, who.key)), as_hash),
    ]


@pytest.mark.requirement("FGT-4")
async def test_home_is_counted_and_erased_with_all_related_data(
    store: Store, server: Server, tmp_path: Path
) -> None:
    mine, others = Belongings(ADA), Belongings(BOB)
    for one in (mine, others):
        await one.write(store)
    before, kept = others.find(server), await load_home(store, BOB)
    assert len(mine.find(server)) > 10
    plan = await store.forgetting.plan(ADA.key, SystemClock().now_ms())
    counts = plan.counts
    assert (counts.sessions, counts.devices, counts.grants, counts.rules) == (1, 2, 1, 1)
    assert counts.bytes > 500
    assert (plan.has_any, plan.obstacle, plan.others) == (True, None, ())
    await forget(store)
    assert mine.find(server) == []
    assert not any(m.encode() in one for one in list_files(tmp_path) for m in mine.markers)
    assert (others.find(server), await load_home(store, BOB)) == (before, kept)
    again = await store.forgetting.plan(ADA.key, SystemClock().now_ms())
    assert (again.has_any, again.counts.sessions) == (False, 0)


@pytest.mark.requirement("FGT-4")
async def test_home_with_devices_only_stays_in_memory_and_is_erased_by_owner_only(
    store: Store,
) -> None:
    offer = Offer(f"dev_{ADA.home.tag}{'0' * 26}", ADA, "phone", (), DeviceRights(), "hash")
    await DeviceLists(make_writes(store)).change(ADA, offer, "ada")
    late_ms = SystemClock().now_ms() + 3_600_000
    found = await store.ended_sessions.find(ALL_SHARDS, late_ms)
    assert ADA.home_session not in {one.session for some in found.values() for one in some}
    [(_, head)] = await store.session_forgetting.survey.finder.read_heads(
        ADA.home, [ADA.home_session]
    )
    assert await store.session_forgetting.survey.finder.judge(head) == "kept"


@pytest.mark.requirement("FGT-4")
async def test_returning_person_gets_a_new_home_unaffected_by_old_tombstones(
    store: Store, server: Server, tmp_path: Path
) -> None:
    mine = Belongings(ADA)
    await mine.write(store)
    await store.owner_keys.prepare()
    copies = copy_engine(server)
    await forget(store)
    assert await DeviceLists(make_writes(store)).load(ADA) is None
    back = Belongings(ADA)
    await back.write(store)
    kept = await load_home(store, ADA)
    shard = shard_of(ADA.key)
    await store.nodes.update(shard, pack("UNLINK", keys.tombstones(shard)))
    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as fresh:
        await fresh.forgetting.resume(ALL_SHARDS, 0)
        assert await load_home(fresh, ADA) == kept
    put_back(server, copies)
    async with await Store.open(settings) as fresh:
        assert mine.find(server)
        [done] = await fresh.forgetting.resume(ALL_SHARDS, 0)
        assert done.counts.devices == 2
        assert mine.find(server) == []


async def test_held_home_stays_whole(store: Store) -> None:
    await Belongings(ADA).write(store)
    kept = await load_home(store, ADA)
    assert await store.tombstones.hold(ADA.key, LegalHold(1, "carl", "case 12"))
    with pytest.raises(InvalidInput, match="is held since"):
        await forget(store)
    assert await load_home(store, ADA) == kept


async def test_devices_of_an_archived_home_are_erased_too(store: Store, server: Server) -> None:
    """The state left by a version that archived such a home."""
    mine = Belongings(ADA)
    await mine.write(store)
    given = [keys.entity(EntityRef(kind, ADA.home_session)) for kind in _BESIDE]
    await store.nodes.update(ADA.home, pack("UNLINK", *given))
    left = await store.archiver.archive(ADA.home, [ADA.home_session])
    assert left.sessions == [ADA.home_session]
    await forget(store)
    assert mine.find(server) == []


_BESIDE = (EntityKind.GRANTS, EntityKind.RULES)


async def test_connected_device_is_notified_and_its_pending_link_end_is_not_written(
    store: Store, server: Server
) -> None:
    mine, reported = Belongings(ADA), list["ChannelUpdate"]()
    await mine.write(store)
    generation = await mine.connect(store)
    await store.channels.listen(ADA.key, reported.append)
    await forget(store)
    await wait_until(lambda: OwnerForgotten() in reported, 5, "it is notified")
    await store.links.add_pending(mine.channel, generation, "disconnected", b"{}")
    assert mine.find(server) == []


@pytest.mark.requirement("FGT-4")
@pytest.mark.parametrize("is_done", [True, False])
async def test_erasure_killed_at_any_step_is_completed_by_the_next(
    store: Store,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_done: bool,
) -> None:
    others = Belongings(BOB)
    await others.write(store)
    kept = await load_home(store, BOB)
    steps, settings = 0, StoreSettings(server.url, tmp_path / "blobs")
    while True:
        steps += 1
        mine = Belongings(ADA)
        await mine.write(store)
        story = await begin(store, 1, ArchivedStory(owner=ADA.key))
        await leave(store, story)
        with monkeypatch.context() as patch:
            kill_at(store, patch, steps, is_done=is_done)
            try:
                await forget(store)
                break
            except Killed:
                pass
        async with await Store.open(settings) as fresh:
            if not await fresh.forgetting.resume(ALL_SHARDS, SystemClock().now_ms()):
                await forget(fresh)
            assert mine.find(server) == [], steps
            assert await load_home(fresh, BOB) == kept
    assert mine.find(server) == []
    assert steps > 8


async def test_sessions_of_others_with_participation_are_named_and_stay(store: Store) -> None:
    """In any shard; none of the person's own sessions, and open ones too."""
    given, shown, own = (ArchivedStory(owner=one.key) for one in (ADA, ADA, BOB))
    for story in (given, shown):
        await begin(store, 1, story)
    opened = (OpenChange(own.at.task, 0),)
    assert isinstance(await store.log.append(own.tell("", opened=opened)), Appended)
    for story in (given, own):
        await store.views.put_row(IndexRow(BOB.key, "echo", story.at.task, 1, "completed"))
    shard = shard_of(BOB.key)
    asked = pack("ZADD", keys.inbox_closed(shard, BOB.key, "allowed"), 1, shown.refs[3].id)
    await store.nodes.update(shard, asked)
    await leave(store, shown)
    now_ms = SystemClock().now_ms()
    plan = await store.forgetting.plan(BOB.key, now_ms)
    assert plan.others == tuple(sorted([given.at.session, shown.at.session]))
    closed = (OpenChange(own.at.task, None),)
    assert isinstance(await store.log.append(own.tell("", opened=closed)), Appended)
    kept = [await read_all(store, story) for story in (given, shown)]
    await forget(store, BOB)
    assert [await read_all(store, story) for story in (given, shown)] == kept
    assert (await store.forgetting.plan(BOB.key, now_ms)).others == plan.others
