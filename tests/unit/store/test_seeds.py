"""Addresses of a store: one, several of one kind, or Sentinels."""

from __future__ import annotations

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.store.topology import read_seeds


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("redis://db:7000/2", ["db:7000"]),
        ("unix:///run/x.sock", ["/run/x.sock"]),
        ("redis://a,redis://b:7001", ["a:6379", "b:7001"]),
        ("rediss://u:p,w@a:1, rediss://u:p,w@b:2", ["a:1", "b:2"]),
    ],
)
def test_servers_are_read_in_their_order(text: str, names: list[str]) -> None:
    seeds = read_seeds(text)
    assert [endpoint.name for endpoint in seeds.endpoints] == names
    assert seeds.service is None


@pytest.mark.parametrize(
    "text",
    [
        "redis+sentinel://ada:pw@s1,s2:7/main/3?sentinel_password=spw",
        (
            "redis+sentinel://ada:pw@s1/main/3?sentinel_password=spw,"
            "redis+sentinel://ada:pw@s2:7/main/3?sentinel_password=spw"
        ),
    ],
)
def test_sentinels_have_a_service_and_credentials_of_their_own(text: str) -> None:
    seeds = read_seeds(text)
    assert [endpoint.name for endpoint in seeds.endpoints] == ["s1:26379", "s2:7"]
    assert [endpoint.kwargs.get("password") for endpoint in seeds.endpoints] == ["spw", "spw"]
    assert all("username" not in endpoint.kwargs for endpoint in seeds.endpoints)
    assert seeds.service is not None
    assert seeds.service.name == "main"
    primary = seeds.service.primary.at("db", 6380)
    wanted = {"host": "db", "port": 6380, "username": "ada", "password": "pw", "db": 3}
    assert {**primary.kwargs} == wanted
    assert "pw" not in repr(seeds)


def test_sentinels_over_tls_lead_to_a_primary_over_tls() -> None:
    seeds = read_seeds("rediss+sentinel://s1/main?ssl_ca_certs=/ca.pem")
    assert seeds.service is not None
    for endpoint in (*seeds.endpoints, seeds.service.primary):
        assert endpoint.connection_class.__name__ == "SSLConnection"
        assert endpoint.kwargs["ssl_ca_certs"] == "/ca.pem"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "redis_url"),
        ("redis://a,http://b", "redis_url"),
        ("redis+sentinel://s1:26379", "name of the primary"),
        ("redis+sentinel:///main", "name of the primary"),
        ("redis+sentinel://s1/main,redis://a", "cannot be named together"),
        ("redis+sentinel://s1/main,redis+sentinel://s2/other", "one service"),
        ("redis+sentinel://a:b@s1/main,redis+sentinel://a:c@s2/main", "one credential"),
    ],
)
def test_unusable_addresses_are_a_setting_at_fault(text: str, words: str) -> None:
    with pytest.raises(ConfigInvalid, match=words):
        read_seeds(text)
