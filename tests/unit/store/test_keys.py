"""Keys: one slot per shard, no two of them equal, and each of a known kind."""

from __future__ import annotations

import binascii

from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.index_changes import SESSIONS, UNSEEN
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import PARTS
from passerelle.store import keys
from passerelle.store.topology import slot_of
from tests.support.spelt_ids import compose_id

shards = st.sampled_from(ALL_SHARDS)


def permanent_keys(shard: Shard, number: int) -> list[str]:
    session = compose_id("se", shard, 1, number)
    person = compose_id("pr", shard, 1, number)
    streams = [StreamRef(StreamKind.SESSION, session), StreamRef(StreamKind.INBOX, person)]
    entities = [
        EntityRef(kind, compose_id(prefix, shard, 1, number))
        for kind, prefix in zip(
            EntityKind, ("se", "th", "task", "act", "dvs", "grs", "rus"), strict=True
        )
    ]
    return [
        *(keys.entity(ref) for ref in entities),
        *(keys.entries(stream) for stream in streams),
        *(keys.stream_targets(stream) for stream in streams),
        keys.head(streams[1]),
        keys.session_open(shard, session),
        keys.session_tasks(shard, session),
        keys.inbox_open(shard, person),
        keys.inbox_order(shard, person),
        *(
            keys.owner_index(shard, person, agent, part)
            for agent in ("echo", UNSEEN, SESSIONS)
            for part in PARTS
        ),
        keys.due(shard),
        keys.own(shard, f"in_{number}"),
        keys.feed(shard),
        keys.meta(shard),
        keys.marks(shard),
    ]


def expiring_keys(shard: Shard, number: int) -> list[str]:
    session = StreamRef(StreamKind.SESSION, compose_id("se", shard, 1, number))
    return [
        keys.stream_acks(session),
        keys.idempotency(shard, f"{number}"),
        keys.duty(shard),
        keys.limits(shard, f"{number}"),
        keys.channel(shard, compose_id("ch", shard, 1, number)),
        keys.presence(shard, compose_id("pr", shard, 1, number)),
        keys.probe(shard),
        keys.agent_report(shard, f"in_{number}"),
    ]


@given(shards, st.integers(0, 2**80 - 1))
def test_all_keys_of_a_shard_share_its_tag_and_are_different(shard: Shard, number: int) -> None:
    found = [*permanent_keys(shard, number), *expiring_keys(shard, number)]
    assert len(set(found)) == len(found)
    assert all(key.startswith(f"{{{shard.tag}}}:") for key in found)


@given(shards, st.integers(0, 2**80 - 1))
def test_leak_check_knows_what_lives_for_good_and_nothing_else(shard: Shard, number: int) -> None:
    assert all(keys.PERMANENT.fullmatch(key) for key in permanent_keys(shard, number))
    assert not any(keys.PERMANENT.fullmatch(key) for key in expiring_keys(shard, number))


@given(shards, st.integers(0, 2**80 - 1))
def test_every_key_is_of_one_kind_that_an_operator_knows(shard: Shard, number: int) -> None:
    kinds = [prefix for prefixes in keys.KINDS.values() for prefix in prefixes]
    assert len(set(kinds)) == len(kinds)
    for key in (*permanent_keys(shard, number), *expiring_keys(shard, number)):
        prefix, rest = keys.read_parts(key)
        assert prefix in kinds
        assert key == f"{{{shard.tag}}}:{prefix}{':' if rest else ''}{rest}"
    assert keys.read_parts("somebody:else") == keys.read_parts("{zz}:e:x") == ("", "")


def test_session_is_the_head_of_its_stream() -> None:
    session = compose_id("se", Shard(3), 1, 1)
    assert keys.entity(EntityRef(EntityKind.SESSION, session)) == keys.head(
        StreamRef(StreamKind.SESSION, session)
    )


@given(shards, st.integers(0, 2**80 - 1))
def test_keys_of_a_session_together_are_those_that_it_has_one_by_one(
    shard: Shard, number: int
) -> None:
    session = compose_id("se", shard, 1, number)
    stream = StreamRef(StreamKind.SESSION, session)
    assert keys.session_keys(shard, session) == [
        keys.head(stream),
        keys.entries(stream),
        keys.session_open(shard, session),
        keys.session_tasks(shard, session),
        keys.stream_targets(stream),
    ]
    assert keys.session_head(shard, session) == keys.head(stream)
    for kind in EntityKind:
        ref = EntityRef(kind, session)
        assert keys.entity_in(shard, ref) == keys.entity(ref)


def test_sixty_four_tags_have_sixty_four_slots_that_spread_over_nodes() -> None:
    slots = [slot_of(shard) for shard in ALL_SHARDS]
    assert len(set(slots)) == 64
    assert slots[0] == binascii.crc_hqx(b"00", 0) % 16_384
    thirds = [sum(1 for slot in slots if slot * 3 // 16_384 == part) for part in range(3)]
    assert sorted(thirds) == [20, 21, 23]
