"""A key is rotated without an interruption: both are accepted for a while, and an expired one is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.credentials import Credentials
from passerelle.core.errors import CredentialExpired, Unauthenticated
from passerelle.core.wire.times import parse_ms
from passerelle.gateway.auth.authenticator import Callers, KnownCallers
from passerelle.gateway.auth.keys import KeyRing, hash_key
from passerelle.gateway.settings.callers import ClientSettings
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.source import read_settings
from passerelle.runtime.common.secret import Secret

pytestmark = pytest.mark.anyio

UNTIL = "2027-01-31T00:00:00Z"
END_MS = parse_ms(UNTIL)
NEW, OLD = (hash_key(Secret(key)) for key in ("k-new", "k-old"))


@dataclass
class SetClock:
    """A clock that a test sets."""

    at_ms: int

    def now_ms(self) -> int:
        return self.at_ms


def open_door(clock: SetClock, **client: str) -> KnownCallers:
    settings = ClientSettings.model_validate({"name": "shop", "may_call": ["*"], **client})
    return KnownCallers(Callers(KeyRing((Secret("owner"),), [settings], clock)))


async def test_both_keys_are_one_client_until_the_old_one_ends() -> None:
    clock = SetClock(END_MS - 1)
    door = open_door(clock, key_hash=NEW, old_key_hash=OLD, old_key_until=UNTIL)
    new = door.authenticate_cached(Credentials("k-new"))
    assert new is not None
    assert new.id == "shop"
    assert door.authenticate_cached(Credentials("k-old")) is new
    assert await door.authenticate(Credentials(api_key="k-old")) is new
    clock.at_ms = END_MS
    assert door.authenticate_cached(Credentials("k-old")) is None
    with pytest.raises(CredentialExpired, match="the API key has expired"):
        await door.authenticate(Credentials("k-old"))
    assert await door.authenticate(Credentials("k-new")) is new


async def test_a_key_may_have_an_end_by_itself() -> None:
    clock = SetClock(END_MS - 1)
    door = open_door(clock, key_hash=NEW, key_until=UNTIL)
    assert (await door.authenticate(Credentials("k-new"))).id == "shop"
    clock.at_ms = END_MS + 1
    with pytest.raises(CredentialExpired):
        await door.authenticate(Credentials("k-new"))
    with pytest.raises(Unauthenticated) as refused:
        await door.authenticate(Credentials("k-nobody"))
    assert not isinstance(refused.value, CredentialExpired)
    assert (await door.authenticate(Credentials("owner"))).id == "owner"


@given(st.integers(0, 2 * END_MS))
def test_a_key_is_taken_exactly_before_its_end(now_ms: int) -> None:
    door = open_door(SetClock(now_ms), key_hash=NEW, old_key_hash=OLD, old_key_until=UNTIL)
    assert (door.authenticate_cached(Credentials("k-old")) is not None) is (now_ms < END_MS)
    assert door.authenticate_cached(Credentials("k-new")) is not None


def read_faults(folder: Path, *clients: dict[str, object]) -> list[str]:
    config = folder / "passerelle.yaml"
    listed: list[dict[str, object]] = [
        {"name": f"c{n}", "may_call": [], **one} for n, one in enumerate(clients)
    ]
    config.write_text(yaml.safe_dump({"clients": listed}), "utf-8")
    reading = read_settings(Sources({}, folder, config))
    return [f"{fault.key}: {fault.reason}" for fault in reading.faults]


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({"key_hash": NEW, "old_key_hash": OLD}, "clients.0.old_key_until: is required with"),
        (
            {"key_hash": NEW, "old_key_until": UNTIL},
            "clients.0.old_key_until: requires old_key_hash",
        ),
        (
            {"key_hash": NEW, "old_key_hash": NEW[7:], "old_key_until": UNTIL},
            "clients.0.old_key_hash: equals key_hash",
        ),
        (
            {"key_hash": NEW, "key_until": "2027-01-31T00:00:00"},
            "clients.0.key_until: should have timezone info",
        ),
        ({"key_hash": NEW, "old_key_hash": "abc"}, "clients.0.old_key_hash: should be sha256:"),
    ],
)
def test_half_a_rotation_is_refused(tmp_path: Path, client: dict[str, object], said: str) -> None:
    assert read_faults(tmp_path, client)[0].startswith(said)


def test_a_key_is_of_one_client_as_old_or_new(tmp_path: Path) -> None:
    rotated: dict[str, object] = {"key_hash": NEW, "old_key_hash": OLD, "old_key_until": UNTIL}
    assert read_faults(tmp_path, rotated) == []
    assert read_faults(tmp_path, rotated, {"key_hash": OLD}) == [
        "clients.1.key_hash: is also that of c0"
    ]


def test_a_time_of_the_file_is_read_with_and_without_quotes(tmp_path: Path) -> None:
    config = tmp_path / "passerelle.yaml"
    for written in (UNTIL, f'"{UNTIL}"'):
        config.write_text(
            f"clients:\n  - {{name: a, may_call: [], key_hash: '{NEW}', key_until: {written}}}\n",
            "utf-8",
        )
        found = read_settings(Sources({}, tmp_path, config))
        assert found.settings is not None, found.faults
        until = found.settings.clients[0].key_until
        assert until is not None
        assert until.timestamp() * 1000 == END_MS
