"""One owner token per store, for all instances and data directories, and errors that prevent it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from passerelle.core.credentials import Credentials
from passerelle.core.errors import ConfigInvalid, Unauthenticated, WriteConflict
from passerelle.gateway.auth.access import find_place, open_access, run_rotation
from passerelle.gateway.auth.owner import rotate_owner_token
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common import refresh as news_following
from passerelle.runtime.common.secret import Secret
from passerelle.store import keys
from passerelle.store.sealed_values import SealedToken
from passerelle.store.store import Store, StoreSettings
from tests.support.engine import ask, engine_server, started_legs
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, MutableMapping
    from pathlib import Path

    from passerelle.gateway.auth.access import Access
    from passerelle.gateway.auth.owner import OwnerToken
    from tests.support.engine import Server

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
KEY, OTHER_KEY = "00" * 32, "11" * 32
WITHIN_S = 10.0


@dataclass
class Site:
    """Instances that share a store, each with its own data directory."""

    url: str
    folder: Path
    stack: AsyncExitStack
    said: list[MutableMapping[str, Any]]
    introduced: dict[str, OwnerToken] = field(default_factory=dict[str, "OwnerToken"])

    def describe(self, name: str, key: str | None = KEY) -> Settings:
        """The settings of an instance."""
        sealed = None if key is None else Secret(key)
        return Settings(redis_url=Secret(self.url), data_dir=self.folder / name, secret_key=sealed)

    async def open_store(self, name: str = "any") -> Store:
        """A separate connection to the store for an instance, as a process has it."""
        opened = await Store.open(StoreSettings(self.url, self.folder / name / "blobs"))
        return await self.stack.enter_async_context(opened)

    async def start(self, name: str, key: str | None = KEY) -> Access:
        """The access of another instance."""
        store = await self.open_store(name)

        def introduce(token: OwnerToken) -> None:
            self.introduced[name] = token

        return await self.stack.enter_async_context(
            open_access(self.describe(name, key), store, introduce)
        )

    def read_file(self, name: str) -> str:
        """The token in the data directory of an instance."""
        return (self.folder / name / "owner-token").read_text("ascii").strip()

    def put_file(self, name: str, text: str) -> None:
        """Writes a token to the data directory of an instance that has not started yet."""
        (self.folder / name).mkdir(mode=0o700)
        path = self.folder / name / "owner-token"
        path.touch(mode=0o600)
        path.write_text(text, "ascii")

    def events(self) -> list[str]:
        """Logged events about owner tokens."""
        names = [str(one["event"]) for one in self.said]
        return [name for name in names if name.startswith("owner_token.")]


@pytest.fixture
async def site(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Site]:
    ask(engine_server.url, "FLUSHALL")
    with structlog.testing.capture_logs() as said:
        async with AsyncExitStack() as stack:
            yield Site(engine_server.url, tmp_path, stack, said)


def knows(access: Access, token: str) -> bool:
    """Whether a token currently authenticates the owner."""
    found = access.authenticator.authenticate_cached(Credentials(token))
    return found is not None and found.id == "owner"


async def test_instances_with_two_data_directories_share_one_token(site: Site) -> None:
    one, two = await site.start("one"), await site.start("two")
    token = site.read_file("one")
    assert site.read_file("two") == token
    assert knows(one, token)
    assert knows(two, token)
    assert [site.introduced[name].minted for name in ("one", "two")] == [True, False]
    assert (site.folder / "two" / "owner-token").stat().st_mode & 0o777 == 0o600


async def test_stored_token_is_encrypted_for_its_runtime_and_generation(site: Site) -> None:
    await site.start("one")
    store = await site.open_store()
    row = await store.owner_tokens.read()
    assert row is not None
    assert row.generation == 1
    assert site.read_file("one").encode() not in row.sealed
    # Write access to the store is not enough to restore a rotated token as a later generation.
    ask(site.url, "HSET", keys.owner_token(), 2, row.sealed)
    with pytest.raises(ConfigInvalid, match="secret_key: cannot decrypt the owner token"):
        await site.start("two")
    ask(site.url, "HDEL", keys.owner_token(), 2)
    ask(site.url, "SET", keys.runtime(), "rt_another")
    with pytest.raises(ConfigInvalid, match="secret_key: cannot decrypt the owner token"):
        await site.start("two")


async def test_token_of_a_data_directory_is_adopted_by_a_store_without_one(site: Site) -> None:
    site.put_file("one", "mine")
    assert knows(await site.start("one"), "mine")
    assert not site.introduced["one"].minted
    assert knows(await site.start("two"), "mine")
    assert site.read_file("two") == "mine"


async def test_differing_token_of_a_data_directory_is_logged_and_accepted_until_a_rotation(
    site: Site,
) -> None:
    first = await site.start("one")
    shared = site.read_file("one")
    site.put_file("two", "of-its-own")
    second = await site.start("two")
    assert knows(second, shared)
    assert knows(second, "of-its-own")
    assert not knows(first, "of-its-own")
    assert "owner_token.differs" in site.events()
    assert site.read_file("two") == "of-its-own"
    made, _ = await run_rotation(site.describe("three"))
    token = made.get_secret_value()
    await wait_until(lambda: knows(second, token), WITHIN_S, "the other instance has the new one")
    assert not knows(second, "of-its-own")
    assert site.read_file("two") == token


@pytest.mark.parametrize("with_hint", [True, False])
async def test_rotation_reaches_running_instances_by_hint_or_polling(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, with_hint: bool
) -> None:
    monkeypatch.setattr(news_following, "ROUND_S", 3_600.0 if with_hint else 0.2)
    one, two = await site.start("one"), await site.start("two")
    before = site.read_file("one")
    changed = list[str]()
    one.on_change(lambda: changed.append("one"))
    store = await site.open_store()
    place = find_place(site.describe("one"), store)
    assert place is not None
    if not with_hint:

        async def skip_hint() -> None:
            return

        monkeypatch.setattr(place.rows, "tell", skip_hint)
    made = (await rotate_owner_token(place)).get_secret_value()
    for access in (one, two):
        await wait_until(partial(knows, access, made), WITHIN_S, "the new one")
        assert not knows(access, before)
        with pytest.raises(Unauthenticated):
            await access.authenticator.authenticate(Credentials(before))
    assert changed == ["one"]
    assert [site.read_file(name) for name in ("one", "two")] == [made, made]
    assert ask(site.url, "HKEYS", keys.owner_token()) == [b"2"]


async def test_instance_stopped_during_a_rotation_does_not_accept_the_old_token(
    site: Site,
) -> None:
    await site.start("one")
    old = site.read_file("one")
    made, _ = await run_rotation(site.describe("elsewhere"))
    site.put_file("two", old)
    access = await site.start("two")
    assert not knows(access, old)
    assert knows(access, made.get_secret_value())
    assert site.read_file("two") == made.get_secret_value()


async def test_rotation_lost_in_a_failover_is_written_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_following, "ROUND_S", 0.1)
    one = await site.start("one")
    store = await site.open_store()
    before = await store.owner_tokens.read()
    assert before is not None
    old = site.read_file("one")
    made, _ = await run_rotation(site.describe("one"))
    await wait_until(lambda: knows(one, made.get_secret_value()), WITHIN_S, "the new one")
    ask(site.url, "DEL", keys.owner_token())
    await store.owner_tokens.keep(before)

    async def is_back() -> bool:
        found = await store.owner_tokens.read()
        return found is not None and found.generation == 2

    await wait_until(is_back, WITHIN_S, "the rotation is written again")
    assert not knows(one, old)
    assert "owner_token.lost" in site.events()


async def test_error_for_a_wrong_key_names_its_setting(site: Site) -> None:
    await site.start("one")
    with pytest.raises(ConfigInvalid, match=r"^secret_key: cannot decrypt the owner token"):
        await site.start("two", OTHER_KEY)
    path = site.folder / "keys"
    path.write_text(OTHER_KEY)
    settings = site.describe("two", None).model_copy(update={"secret_key_file": path})
    with pytest.raises(ConfigInvalid, match=r"^secret_key_file: cannot decrypt the owner token"):
        async with open_access(settings, await site.open_store()):
            pass
    with pytest.raises(ConfigInvalid, match=r"^secret_key: is not set, but the owner token"):
        await site.start("two", None)
    assert not (site.folder / "two" / "owner-token").exists()
    assert ask(site.url, "HLEN", keys.owner_token()) == 1


async def test_rotation_requires_the_previous_key_unless_it_is_lost(site: Site) -> None:
    one = await site.start("one")
    with pytest.raises(ConfigInvalid, match=r"^secret_key: cannot decrypt the owner token"):
        await run_rotation(site.describe("two", OTHER_KEY))
    assert ask(site.url, "HKEYS", keys.owner_token()) == [b"1"]
    made, _ = await run_rotation(site.describe("two", OTHER_KEY), key_lost=True)
    assert knows(await site.start("two", OTHER_KEY), made.get_secret_value())
    await wait_until(
        lambda: "owner_token.invalid" in site.events(), WITHIN_S, "the first instance logs it"
    )
    assert knows(one, site.read_file("one"))


async def test_second_of_two_concurrent_rotations_raises_a_conflict(site: Site) -> None:
    await site.start("one")
    store = await site.open_store()
    place = find_place(site.describe("one"), store)
    assert place is not None
    rows, theirs = store.owner_tokens, place.seal(Secret("theirs"), 2)
    read = rows.read

    async def read_before_the_other() -> SealedToken | None:
        found = await read()
        if found is not None and found.generation == 1:
            await rows.keep(theirs)
        return found

    rows.read = read_before_the_other  # type: ignore[method-assign]
    with pytest.raises(WriteConflict):
        await rotate_owner_token(place)
    assert await read() == theirs


async def test_rotated_key_encrypts_the_token_again(site: Site) -> None:
    await site.start("one")
    token = site.read_file("one")
    assert knows(await site.start("two", f"{OTHER_KEY},{KEY}"), token)
    assert knows(await site.start("three", OTHER_KEY), token)


async def test_without_a_key_each_data_directory_has_its_own_token_and_a_warning_is_logged(
    site: Site,
) -> None:
    one, two = await site.start("one", None), await site.start("two", None)
    assert site.introduced["one"].minted
    assert site.introduced["two"].minted
    assert knows(one, site.read_file("one"))
    assert not knows(two, site.read_file("one"))
    assert site.events() == ["owner_token.unshared", "owner_token.unshared"]
    assert ask(site.url, "EXISTS", keys.owner_token()) == 0
    with pytest.raises(ConfigInvalid, match=r"^secret_key: is not set"):
        await run_rotation(site.describe("one", None))


async def test_data_directory_that_cannot_be_written_is_logged(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start("one")
    # A directory in place of the temporary file stops a superuser, too.
    (site.folder / "two").mkdir(mode=0o700)
    token = site.read_file("one")
    monkeypatch.setattr("os.getpid", lambda: 7)
    (site.folder / "two" / ".owner-token.7").mkdir()
    assert knows(await site.start("two"), token)
    assert "owner_token.stale" in site.events()
