"""INFO: both engines report their version, and a server that would lose data is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.store.connection import read_url
from passerelle.store.info import ServerFacts, is_cluster, parse_info, read_facts, refuse_unfit

VALKEY = b"""# Server\r
redis_version:7.2.4\r
valkey_version:9.1.2\r
# Persistence\r
aof_enabled:1\r
maxmemory_policy:noeviction\r
role:master\r
connected_slaves:2\r
master_replid:abc\r
used_memory:10\r
maxmemory:20\r
cluster_enabled:0\r
"""


def test_valkey_is_known_by_its_own_version() -> None:
    facts = read_facts(parse_info(VALKEY))
    assert (facts.engine, facts.version, facts.replicas) == ("valkey", (9, 1, 2), 2)
    assert not is_cluster(parse_info(VALKEY))


def test_redis_has_no_other_version() -> None:
    facts = read_facts(parse_info(b"redis_version:7.0.15\r\nrole:master\r\n"))
    assert (facts.engine, facts.version, facts.durable) == ("redis", (7, 0, 15), False)


GOOD = read_facts(parse_info(VALKEY))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (replace(GOOD, version=(6, 2, 14)), "6.2.14"),
        (replace(GOOD, role="slave"), "replica"),
        *[
            (replace(GOOD, policy=policy), f"{policy}.*sent twice.*noeviction")
            for policy in ("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl")
        ],
        (replace(GOOD, policy="allkeys-lru"), "allkeys-lru.*tasks.*noeviction"),
        (replace(GOOD, durable=False), "append-only"),
    ],
)
def test_unfit_server_is_refused_by_name(bad: ServerFacts, words: str) -> None:
    refuse_unfit(GOOD, "db:6379", "aof")
    with pytest.raises(ConfigInvalid, match=words):
        refuse_unfit(bad, "db:6379", "aof")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("replicas", [0, 2])
def test_server_must_be_durable_unless_the_settings_vouch_for_it(
    *, durable: bool, replicas: int
) -> None:
    facts = replace(GOOD, durable=durable, replicas=replicas)
    refuse_unfit(facts, "db:6379", "service")
    with nullcontext() if durable else pytest.raises(ConfigInvalid, match=r"store\.durability"):
        refuse_unfit(facts, "db:6379", "aof")
    # One may come: the first moments of a promoted server are without any.
    with nullcontext() if replicas else pytest.raises(StoreUnavailable, match="no replica"):
        refuse_unfit(facts, "db:6379", "replicas")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://:secret@db.example:7000/2", "db.example:7000"),
        ("rediss://ada:secret@db.example", "db.example:6379"),
        ("unix:///run/x.sock", "/run/x.sock"),
    ],
)
def test_endpoint_shows_where_and_never_the_password(url: str, name: str) -> None:
    endpoint = read_url(url)
    assert endpoint.name == name
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://db",
        "redis://db:port",
        "redis://db/orders",
        "redis://db/1x",
        "rediss://db/1/2",
        "redis://db/-1",
    ],
)
def test_unusable_url_is_a_setting_at_fault(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="redis_url"):
        read_url(url)
