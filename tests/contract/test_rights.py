"""The rights of an ACL user: those that the operators' page lists are enough, and a missing one is named."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Final, cast

import pytest

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.store.engine_binary import find_engine
from passerelle.store.rights import NEEDED
from passerelle.store.store import Store, StoreSettings
from tests.support.engine import Server, ask, run_server

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).parents[2]
_IN_SCRIPTS: Final = re.compile(r"redis\.call\('(\w+)'")
_IN_CODE: Final = re.compile(r"pack(?:_words)?\(\s*\(?\"([A-Z]+)\"(?:, \"([A-Z]+)\")?")
_EMBEDDED_ENGINE_ONLY: Final = {"BGREWRITEAOF", "CONFIG"}
_SUBCOMMANDS: Final = {"CLUSTER", "MEMORY", "PUBSUB", "SCRIPT"}


@pytest.fixture(scope="module")
def guarded() -> Generator[Server]:
    """A server whose users these tests define."""
    with run_server(find_engine(None)) as running:
        yield running


def read_documented() -> list[str]:
    page = (ROOT / "docs" / "operate" / "README.md").read_text("utf-8")
    rule = page[page.index("- A user with an ACL needs") :].partition("\n- ")[0]
    return [
        word
        for quoted in re.findall(r"`([^`]+)`", rule)
        for word in quoted.split()
        if word[0] in "~&+"
    ]


def grant(server: Server, *rules: str) -> str:
    """Sets the rules of the user ``gate``; returns the address with its password."""
    ask(server.url, "ACL", "SETUSER", "gate", "reset", "on", ">pw", *rules)
    return server.url.replace("unix://", "unix://gate:pw@")


def list_commands() -> set[tuple[str, ...]]:
    """Every command that scripts and code send, with its subcommand."""
    found: set[tuple[str, ...]] = {
        (name.upper(),)
        for folder in ("store/lua", "clients/python/passerelle_client/lua")
        for path in (ROOT / folder).glob("*.lua")
        for name in _IN_SCRIPTS.findall(path.read_text("utf-8"))
    }
    for path in (ROOT / "store").rglob("*.py"):
        for name, second in _IN_CODE.findall(path.read_text("utf-8")):
            found.add((name, second) if name in _SUBCOMMANDS else (name,))
    return {one for one in found if one[0] not in _EMBEDDED_ENGINE_ONLY}


def test_documented_rights_are_enough_for_every_command(guarded: Server) -> None:
    grant(guarded, *read_documented())
    commands = list_commands()
    assert {("EXISTS",), ("XADD",), ("UNLINK",), ("SCAN",)} <= commands
    refused: list[object] = []
    for name, *rest in sorted(commands):
        [known] = cast(
            "dict[str, dict[str, int]]",
            ask(guarded.url, "COMMAND", "INFO", "|".join((name, *rest))),
        ).values()
        number = max(0, abs(known["arity"]) - 1 - len(rest))
        said = ask(guarded.url, "ACL", "DRYRUN", "gate", name, *rest, *["1"] * number)
        if said not in {b"OK", "OK"}:
            refused.append(said)
    assert refused == []


@pytest.mark.parametrize("name", [name for name, *_ in NEEDED])
async def test_missing_right_is_named_at_the_start(
    guarded: Server, tmp_path: Path, name: str
) -> None:
    url = grant(guarded, *read_documented(), f"-{name.lower()}")
    wanted = rf"redis_url: its user may not run {name}: add \+{name.lower()}"
    with pytest.raises(ConfigInvalid, match=wanted):
        await Store.open(StoreSettings(url, tmp_path))
    with pytest.raises(ConfigInvalid, match=wanted):
        await Store.examine(url)


@pytest.mark.parametrize(("rule", "added"), [("resetkeys", "~*"), ("resetchannels", "&*")])
async def test_user_without_every_key_or_channel_is_told_so(
    guarded: Server, tmp_path: Path, rule: str, added: str
) -> None:
    url = grant(guarded, *read_documented(), rule, *(["~other:*"] if rule == "resetkeys" else []))
    with pytest.raises(ConfigInvalid, match=f"redis_url: .* add {re.escape(added)} to its ACL"):
        await Store.open(StoreSettings(url, tmp_path))


async def test_command_that_the_start_needs_first_is_named_by_the_server(
    guarded: Server, tmp_path: Path
) -> None:
    url = grant(guarded, *read_documented(), "-info")
    with pytest.raises(StoreUnavailable, match=r"not permitted: .*'info'"):
        await Store.open(StoreSettings(url, tmp_path))


async def test_store_opens_with_the_documented_rights(guarded: Server, tmp_path: Path) -> None:
    url = grant(guarded, *read_documented())
    async with await Store.open(StoreSettings(url, tmp_path)) as store:
        await store.probe()
