"""``passerelle store forget``, ``hold`` and ``release`` over a data directory: what is said and asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from passerelle.cli.store_forget import (
    OUT_OF_REACH,
    OwnerName,
    SessionSelection,
    choose_verb,
    run_forget,
    run_forget_sessions,
    run_hold,
    run_release,
)
from passerelle.core.errors import InvalidInput
from passerelle.core.ids import ALL_SHARDS
from passerelle.core.payloads.device import DeviceRights
from passerelle.core.ports.projections import IndexRow
from passerelle.core.principal import Principal
from passerelle.core.session.device import Offer
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.store_setup import reach_store
from passerelle.permission_bridge.devices.device_lists import DeviceLists
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_process import EngineSettings
from tests.contract.test_archive import Story, begin, leave
from tests.integration.duties.story import make_writes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio
ADA = OwnerName("ada")


@dataclass
class Asked:
    """Answers what is asked, and keeps it."""

    answer: bool = True
    lines: Sequence[str] = ()

    def __call__(self, lines: Sequence[str]) -> bool:
        self.lines = lines
        return self.answer


@pytest.fixture
async def settings(tmp_path: Path, anyio_backend: str) -> Settings:
    """Over a store in which ada has two sessions, one of them in the archive."""
    async with await EmbeddedEngine.start(EngineSettings(tmp_path / "data")):
        pass
    given = Settings(data_dir=tmp_path / "data")
    async with reach_store(given) as store:
        await leave(store, await begin(store, 2, Story(owner=ADA.key)))
        await begin(store, 2, Story(owner=ADA.key))
    return given


async def forget(settings: Settings, asked: Asked, owner: OwnerName = ADA) -> list[str]:
    return await run_forget(settings, owner, dry_run=False, confirm=asked)


async def test_a_dry_run_and_a_no_change_nothing(settings: Settings) -> None:
    no = Asked(answer=False)
    counted = await run_forget(settings, ADA, dry_run=True, confirm=no)
    assert not no.lines
    [line] = counted
    assert line.startswith("of ada: 2 sessions, 1 of them in the archive, with 2 tasks and 2 app")
    assert await forget(settings, no) == ["nothing else was changed"]
    assert no.lines == counted
    assert await run_forget(settings, ADA, dry_run=True, confirm=no) == counted


async def test_what_was_done_and_what_is_left_is_said(settings: Settings) -> None:
    counted, done, log, rest = await forget(settings, Asked())
    assert counted.startswith("of ada: 2 sessions")
    assert done.startswith("forgotten: ada, tombstone ")
    assert "append-only file of the embedded engine was rewritten" in log
    assert rest == OUT_OF_REACH
    [nothing] = await forget(settings, Asked())
    assert nothing.startswith("of ada: 0 sessions")


async def test_an_owner_key_stands_for_its_owner(settings: Settings) -> None:
    assert OwnerName(ADA.key).key == ADA.key == Principal("ada").key
    assert OwnerName("pr_none").key == Principal("pr_none").key
    assert OwnerName("ada", "other").key != ADA.key
    [line] = await run_forget(settings, OwnerName("ada", "other"), dry_run=True, confirm=Asked())
    assert line.startswith("of ada: 0 sessions")


@pytest.mark.requirement("FGT-3")
async def test_a_hold_is_said_to_whoever_forgets_until_it_is_released(settings: Settings) -> None:
    assert await run_hold(settings, ADA, "case 12") == ["held: ada, case 12"]
    assert await run_hold(settings, ADA, "case 13") == ["held: ada, case 12"]
    told, _ = await run_forget(settings, ADA, dry_run=True, confirm=Asked())
    assert told.startswith("cannot be forgotten: ada is held since ")
    with pytest.raises(InvalidInput, match=r"owner: ada is held since .*: case 12"):
        await forget(settings, Asked())
    assert await run_release(settings, ADA) == ["released: ada"]
    assert await run_release(settings, ADA) == ["no hold on ada"]
    assert len(await forget(settings, Asked())) == 4


@pytest.mark.parametrize(
    ("owner", "tenant", "field"), [(" ", "default", "owner"), ("a", "", "tenant")]
)
async def test_an_empty_name_is_refused(
    settings: Settings, owner: str, tenant: str, field: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: is empty"):
        await forget(settings, Asked(), OwnerName(owner, tenant))
    with pytest.raises(InvalidInput, match="reason: is empty"):
        await run_hold(settings, ADA, " ")


async def forget_sessions(
    settings: Settings, asked: Asked, selection: SessionSelection, *, dry_run: bool = False
) -> list[str]:
    return await run_forget_sessions(settings, selection, dry_run=dry_run, confirm=asked)


async def find_session(settings: Settings) -> str:
    """The one that stands in the archive."""
    async with reach_store(settings) as store:
        [session] = await store.archive.list_sessions(ALL_SHARDS)
    return session


async def test_one_session_is_counted_and_forgotten_and_the_other_stays(settings: Settings) -> None:
    session, asked = await find_session(settings), Asked()
    selection = SessionSelection(session)
    [counted] = await forget_sessions(settings, asked, selection, dry_run=True)
    assert counted.startswith(f"of {session}: 1 session, 1 of them in the archive, with 1 task ")
    assert not asked.lines
    no = Asked(answer=False)
    assert await forget_sessions(settings, no, selection) == ["nothing else was changed"]
    assert no.lines == [counted]
    _, done, log, rest = await forget_sessions(settings, asked, selection)
    assert done.startswith("forgotten: 1 session, tombstone ")
    assert "append-only file of the embedded engine was rewritten" in log
    assert rest == OUT_OF_REACH
    [nothing] = await forget_sessions(settings, asked, selection)
    assert nothing.startswith(f"of {session}: 0 sessions")
    [left] = await run_forget(settings, ADA, dry_run=True, confirm=asked)
    assert left.startswith("of ada: 1 session, 0 of them in the archive")
    for path in settings.data_dir.rglob("*"):
        assert not path.is_file() or session.encode() not in path.read_bytes()


async def test_what_is_from_before_a_time_goes_if_its_tasks_ended_so(settings: Settings) -> None:
    asked = Asked()
    failed = SessionSelection(before="1ms", outcomes=("failed",))
    [none] = await forget_sessions(settings, asked, failed)
    assert none.startswith("of sessions from before 1ms, failed: 0 sessions")
    [early] = await forget_sessions(
        settings, asked, SessionSelection(before="2026-01-01T00:00:00Z")
    )
    assert early.startswith("of sessions from before 2026-01-01T00:00:00Z: 0 sessions")
    counted, *done = await forget_sessions(settings, asked, SessionSelection(before="1ms"))
    assert counted.startswith("of sessions from before 1ms: 2 sessions, 1 of them in the archive")
    assert len([line for line in done if line.startswith("forgotten: 1 session")]) == 2


async def test_a_held_session_stays_and_is_named(settings: Settings) -> None:
    selection, asked = SessionSelection(await find_session(settings)), Asked()
    await run_hold(settings, ADA, "case 12")
    _, stays = await forget_sessions(settings, asked, selection, dry_run=True)
    assert stays == f"stays: {selection.session}: an owner is held"
    with pytest.raises(InvalidInput, match=r"session: se_.*: an owner is held"):
        await forget_sessions(settings, asked, selection)
    await run_release(settings, ADA)
    assert len(await forget_sessions(settings, asked, selection)) == 4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((None, None, None, ()), "owner: exactly one of owner, session and before is required"),
        (("ada", None, "1h", ()), "owner: exactly one of owner, session and before is required"),
        (("ada", None, None, ("failed",)), "outcome: is allowed only with before"),
        ((None, "task_1", None, ()), "session: 'task_1' is no id of a session"),
        ((None, None, "soon", ()), "before: 'soon' is neither a time"),
        (
            (None, None, "1h", ("done",)),
            "outcome: 'done' is not one of cancelled, completed, failed",
        ),
    ],
)
async def test_flags_that_mean_nothing_are_refused(
    settings: Settings,
    flags: tuple[str | None, str | None, str | None, tuple[str, ...]],
    said: str,
) -> None:
    owner, session, before, outcomes = flags
    with pytest.raises(InvalidInput, match=said):
        await choose_verb(owner, "default", session, before, outcomes)(
            settings, dry_run=True, confirm=Asked()
        )


async def test_a_home_is_counted_and_sessions_of_others_are_named(settings: Settings) -> None:
    whose = Principal("ada")
    offer = Offer(f"dev_{whose.home.tag}{'0' * 26}", whose, "phone", (), DeviceRights(), "hash")
    async with reach_store(settings) as store:
        await DeviceLists(make_writes(store)).change(whose, offer, "ada")
        given = await begin(store, 2, Story(owner=Principal("bob").key))
        await store.views.put_row(IndexRow(ADA.key, "echo", given.at.task, 1, "completed"))
        session = given.at.session
    counted, home, others = await run_forget(settings, ADA, dry_run=True, confirm=Asked())
    assert counted.startswith("of ada: 3 sessions, 1 of them in the archive")
    assert home == "with the home session: 1 device, 0 grants and 0 edited rules"
    assert others.startswith(f"stays: ada takes part in 1 session of others: {session}: passerelle")
    alone = SessionSelection(whose.home_session)
    with pytest.raises(InvalidInput, match=r"se_.*: it is a home session: forget its owner"):
        await forget_sessions(settings, Asked(), alone)
    *_, rest = await forget(settings, Asked())
    assert rest == OUT_OF_REACH
    counted, others = await run_forget(settings, ADA, dry_run=True, confirm=Asked())
    assert counted.startswith("of ada: 0 sessions")
    assert session in others
    assert (await forget_sessions(settings, Asked(), SessionSelection(session)))[1].startswith("f")
    [counted] = await run_forget(settings, ADA, dry_run=True, confirm=Asked())
