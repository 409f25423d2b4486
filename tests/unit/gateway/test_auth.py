"""Who gets in: the owner token, API keys, and the open mode of a loopback gateway."""

import stat
from pathlib import Path

import pytest

from passerelle.core.credentials import Credentials
from passerelle.core.errors import ConfigInvalid, Unauthenticated
from passerelle.core.principal import Scope
from passerelle.gateway.auth.credentials import CredentialReader, read_bearer
from passerelle.gateway.auth.keys import (
    OWNER,
    KeyAuthenticator,
    OpenAuthenticator,
    hash_key,
    make_authenticator,
    mint_token,
)
from passerelle.gateway.auth.owner import load_owner_token
from passerelle.gateway.clock import SystemIds
from passerelle.gateway.secret import Secret
from passerelle.gateway.settings import ClientSettings

pytestmark = pytest.mark.anyio

OWNER_TOKEN = Secret("the-owner-token")
PLAIN = ClientSettings(name="plain", key_hash=hash_key(Secret("k-plain")), may_call=("echo",))
PERSON = ClientSettings(
    name="ada",
    key_hash=hash_key(Secret("k-ada")).removeprefix("sha256:"),
    may_call=("*",),
    scopes=(Scope.CALL, Scope.DECIDE),
    kind="person",
)


@pytest.fixture
def keys() -> KeyAuthenticator:
    return KeyAuthenticator(OWNER_TOKEN, (PLAIN, PERSON))


async def test_owner_token_is_the_owner_with_every_right(keys: KeyAuthenticator) -> None:
    owner = await keys.authenticate(Credentials("the-owner-token"))
    assert (owner.id, owner.kind, owner.scopes) == ("owner", "person", frozenset(Scope))
    assert owner.may_call("anything")


async def test_client_without_scopes_may_call_its_agents_and_read_tasks(
    keys: KeyAuthenticator,
) -> None:
    client = await keys.authenticate(Credentials("k-plain"))
    assert (client.id, client.kind) == ("plain", "service")
    assert client.scopes == {Scope.CALL, Scope.READ_TASKS}
    assert client.may_call("echo")
    assert not client.may_call("payments")


async def test_star_is_every_agent_and_a_bare_hash_is_one_too(keys: KeyAuthenticator) -> None:
    person = await keys.authenticate(Credentials("k-ada"))
    assert (person.kind, person.agents) == ("person", None)
    assert Scope.READ_TASKS not in person.scopes


@pytest.mark.parametrize(
    "token",
    [None, "", "k-Plain", "k-plain ", "the-owner-toke", PLAIN.key_hash, "\ud800", "x" * 9_000],
)
async def test_everything_else_is_refused_without_saying_why(
    keys: KeyAuthenticator, token: str | None
) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await keys.authenticate(Credentials(token))
    assert token is None or not token or token not in caught.value.message


async def test_device_is_entered_beside_the_principal(keys: KeyAuthenticator) -> None:
    assert (await keys.authenticate(Credentials("k-ada", device="phone"))).device == "phone"
    assert (await keys.authenticate(Credentials("k-ada"))).device is None
    assert (await OpenAuthenticator().authenticate(Credentials(device="phone"))).device == "phone"


async def test_open_takes_everybody_for_the_owner() -> None:
    door = make_authenticator("open", OWNER_TOKEN, ())
    assert await door.authenticate(Credentials()) == OWNER
    assert await door.authenticate(Credentials("whatever")) == OWNER


async def test_keys_is_what_keys_asks_for() -> None:
    with pytest.raises(Unauthenticated):
        await make_authenticator("keys", OWNER_TOKEN, (PLAIN,)).authenticate(Credentials("wrong"))


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("BEARER  abc ", "abc"),
        ("Bearer ", None),
        ("Basic abc", None),
        ("abc", None),
        (None, None),
    ],
)
def test_bearer_is_read_from_the_header(header: str | None, token: str | None) -> None:
    assert read_bearer(header) == token


def test_head_becomes_credentials_and_nothing_secret_is_shown() -> None:
    head = [
        (b"authorization", b"Bearer t0p"),
        (b"x-api-key", b"k3y"),
        (b"x-client", b"CN=ada"),
    ]
    scope = {"type": "http", "headers": head, "client": ("10.0.0.7", 4711)}
    read = CredentialReader("x-client").read_scope(scope)
    assert read == Credentials("t0p", "k3y", "CN=ada", "10.0.0.7")
    assert "t0p" not in repr(read)
    assert "k3y" not in repr(read)


def test_certificate_header_is_not_read_unless_it_was_named() -> None:
    scope = {"type": "http", "headers": [(b"x-client", b"CN=ada")], "client": None}
    assert CredentialReader().read_scope(scope) == Credentials()


def test_owner_token_is_minted_once_and_kept_for_the_owner_alone(tmp_path: Path) -> None:
    first = load_owner_token(tmp_path, SystemIds())
    again = load_owner_token(tmp_path, SystemIds())
    assert (first.minted, again.minted) == (True, False)
    assert first.secret == again.secret
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["owner-token"]


def test_tokens_differ_and_are_long(tmp_path: Path) -> None:
    tokens = {mint_token(SystemIds()).get_secret_value() for _ in range(50)}
    assert len(tokens) == 50
    assert {len(token) for token in tokens} == {56}


def test_owner_token_that_others_can_read_is_not_trusted(tmp_path: Path) -> None:
    path = load_owner_token(tmp_path, SystemIds()).path
    path.chmod(0o640)
    with pytest.raises(ConfigInvalid, match="others can read it"):
        load_owner_token(tmp_path, SystemIds())


def test_empty_or_unusable_owner_token_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "owner-token"
    path.touch(0o600)
    with pytest.raises(ConfigInvalid, match="is empty"):
        load_owner_token(tmp_path, SystemIds())
    with pytest.raises(ConfigInvalid, match="cannot be used"):
        load_owner_token(tmp_path / "absent", SystemIds())
