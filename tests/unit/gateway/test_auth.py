"""Who gets in: the owner token, API keys, and the open mode of a loopback gateway."""

import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from passerelle.cli.exit_status import ExitStatus, find_exit_status
from passerelle.core.credentials import Credentials, digest_token
from passerelle.core.errors import ConfigInvalid, Unauthenticated
from passerelle.core.principal import OWNER, AccessScope
from passerelle.gateway.auth.authenticator import (
    Callers,
    KnownCallers,
    OpenAuthenticator,
)
from passerelle.gateway.auth.credentials import CredentialReader, read_bearer
from passerelle.gateway.auth.devices import DeviceCallers
from passerelle.gateway.auth.keys import KeyRing, hash_key, mint_token
from passerelle.gateway.auth.owner import load_owner_token
from passerelle.gateway.auth.principals import make_client_principal
from passerelle.gateway.settings.callers import ClientSettings
from passerelle.permission_bridge.devices.pairing import TOKEN_PREFIX
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.secret import Secret
from tests.support.clients import make_client
from tests.support.known_keys import make_authenticator

if TYPE_CHECKING:
    from passerelle.permission_bridge.devices.device_lists import DeviceLists

pytestmark = pytest.mark.anyio

OWNER_TOKEN = Secret("the-owner-token")
PLAIN = make_client("plain", "k-plain", "echo")
PERSON = make_client(
    "ada", "k-ada", "*", scopes=(AccessScope.CALL, AccessScope.DECIDE), kind="person"
)


@pytest.fixture
def keys() -> KnownCallers:
    return make_authenticator(OWNER_TOKEN, (PLAIN, PERSON))


async def test_owner_token_is_the_owner_with_every_right(keys: KnownCallers) -> None:
    owner = await keys.authenticate(Credentials("the-owner-token"))
    assert (owner.id, owner.kind, owner.scopes) == ("owner", "person", frozenset(AccessScope))
    assert owner.may_call("anything")


async def test_client_without_scopes_may_call_its_agents_and_read_tasks(
    keys: KnownCallers,
) -> None:
    client = await keys.authenticate(Credentials("k-plain"))
    assert (client.id, client.kind) == ("plain", "service")
    assert client.scopes == {AccessScope.CALL, AccessScope.READ_TASKS}
    assert client.may_call("echo")
    assert not client.may_call("payments")


async def test_star_is_every_agent(keys: KnownCallers) -> None:
    person = await keys.authenticate(Credentials("k-ada"))
    assert (person.kind, person.agents) == ("person", None)
    assert AccessScope.READ_TASKS not in person.scopes


@pytest.mark.parametrize(
    "token",
    [None, "", "k-Plain", "k-plain ", "the-owner-toke", PLAIN.key_hash, "\ud800", "x" * 9_000],
)
async def test_everything_else_is_refused_without_saying_why(
    keys: KnownCallers, token: str | None
) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await keys.authenticate(Credentials(token))
    assert token is None or not token or token not in caught.value.message


async def test_key_is_taken_with_or_without_the_name_of_its_hash() -> None:
    bare = PLAIN.model_copy(
        update={"key_hash": hash_key(Secret("k-plain")).removeprefix("sha256:")}
    )
    door = make_authenticator(OWNER_TOKEN, (bare,))
    assert (await door.authenticate(Credentials("k-plain"))).id == "plain"


async def test_key_may_stand_in_a_header_of_its_own(keys: KnownCallers) -> None:
    assert (await keys.authenticate(Credentials(api_key="k-plain"))).id == "plain"


async def test_key_that_only_begins_like_a_long_one_is_refused() -> None:
    long = "k" * 9_000
    door = make_authenticator(OWNER_TOKEN, (make_client("long", long, "*"),))
    with pytest.raises(Unauthenticated):
        await door.authenticate(Credentials(long + "x"))


def test_grant_with_operations_allows_these_and_no_others() -> None:
    client = ClientSettings.model_validate(
        {
            "name": "till",
            "key_hash": "0" * 64,
            "may_call": ["echo", {"agent": "pay", "operations": ["SendMessage", "GetTask"]}],
        }
    )
    till = make_client_principal(client)
    assert till.agents == frozenset({"echo", "pay"})
    assert [till.may_use("pay", one) for one in ("SendMessage", "CancelTask")] == [True, False]
    assert till.may_use("echo", "CancelTask")
    assert not till.may_use("other", "SendMessage")


def test_grant_by_name_wins_over_the_star() -> None:
    client = ClientSettings.model_validate(
        {
            "name": "till",
            "key_hash": "0" * 64,
            "may_call": ["echo", {"agent": "*", "operations": ["GetTask"]}],
        }
    )
    till = make_client_principal(client)
    assert till.may_use("echo", "SendMessage")
    assert [till.may_use("any", one) for one in ("SendMessage", "GetTask")] == [False, True]


async def test_device_is_entered_beside_the_principal(keys: KnownCallers) -> None:
    assert (await keys.authenticate(Credentials("k-ada", device="phone"))).device == "phone"
    assert (await keys.authenticate(Credentials("k-ada"))).device is None
    assert (await OpenAuthenticator().authenticate(Credentials(device="phone"))).device == "phone"


async def test_open_takes_everybody_for_the_owner() -> None:
    door = OpenAuthenticator()
    assert await door.authenticate(Credentials()) == OWNER
    assert await door.authenticate(Credentials("whatever")) == OWNER


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
        (b"origin", b"https://desk.example"),
    ]
    scope = {"type": "http", "headers": head, "client": ("10.0.0.7", 4711)}
    read = CredentialReader("x-client").read_scope(scope)
    assert read == Credentials("t0p", "k3y", "CN=ada", "10.0.0.7", origin="https://desk.example")
    assert "t0p" not in repr(read)
    assert "k3y" not in repr(read)


def test_of_a_repeated_header_the_last_counts() -> None:
    head = [
        (b"x-client", b"CN=mallory"),
        (b"origin", b"https://evil.example"),
        (b"x-client", b"CN=J\xf6rg"),
        (b"origin", b"https://desk.example"),
    ]
    read = CredentialReader("x-client").read_scope({"type": "http", "headers": head})
    assert read == Credentials(certificate="CN=J\xf6rg", origin="https://desk.example")


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
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigInvalid, match="cannot be used"):
        load_owner_token(tmp_path, SystemIds())


def test_folder_where_no_owner_token_can_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(ConfigInvalid) as failed:
        load_owner_token(absent, SystemIds())
    assert (
        f"{absent / 'owner-token'}: is not there and cannot be made (No such file"
        in f"{failed.value}"
    )
    assert "let the first start write to the folder" in f"{failed.value}"
    assert find_exit_status(failed.value) is ExitStatus.CALLER


async def test_another_token_on_a_copy_is_another_credential(keys: KnownCallers) -> None:
    shown = Credentials("the-owner-token")
    assert [await keys.authenticate(shown) for _ in range(2)] == [OWNER, OWNER]
    for token in ("rubbish", "k-plain"):
        assert replace(shown, bearer=token).digest == digest_token(token)
    with pytest.raises(Unauthenticated):
        await keys.authenticate(replace(shown, bearer="rubbish"))


def test_only_the_holder_of_a_key_is_recognized_as_long_as_it_is_one(keys: KnownCallers) -> None:
    shown = Credentials("k-ada", device="phone")
    known = keys.authenticate_cached(shown)
    assert known is not None
    assert (known.id, known.device) == ("ada", "phone")
    for token in (None, "", "rubbish", "k-plain ", "x" * 9_000):
        assert keys.authenticate_cached(Credentials(token)) is None
    keys.callers = Callers(KeyRing((OWNER_TOKEN,), []))
    assert keys.authenticate_cached(shown) is None


def test_token_of_a_device_is_looked_up_as_one_whatever_keys_there_are() -> None:
    token = f"{TOKEN_PREFIX}dvs_1"
    door = make_authenticator(OWNER_TOKEN, (make_client("plain", token, "*"),))
    devices = DeviceCallers(door, cast("DeviceLists", None), lambda _id, _tenant: None)
    assert door.authenticate_cached(Credentials(token)) is not None
    assert devices.authenticate_cached(Credentials(token)) is None
    assert devices.authenticate_cached(Credentials("the-owner-token")) is OWNER
