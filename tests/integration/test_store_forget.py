"""``passerelle store forget``, ``hold`` and ``release`` on a data directory: printed lines and confirmation."""

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
class Confirmation:
    """Answers the confirmation, and records its lines."""

    answer: bool = True
    lines: Sequence[str] = ()

    def __call__(self, lines: Sequence[str]) -> bool:
        self.lines = lines
        return self.answer


@pytest.fixture
async def settings(tmp_path: Path, anyio_backend: str) -> Settings:
    """Settings of a store with two sessions of ada, one of them archived."""
    async with await EmbeddedEngine.start(EngineSettings(tmp_path / "data")):
        pass
    given = Settings(data_dir=tmp_path / "data")
    async with reach_store(given) as store:
        await leave(store, await begin(store, 2, Story(owner=ADA.key)))
        await begin(store, 2, Story(owner=ADA.key))
    return given


async def forget(
    settings: Settings, confirmation: Confirmation, owner: OwnerName = ADA
) -> list[str]:
    return await run_forget(settings, owner, dry_run=False, confirm=confirmation)


async def test_dry_run_and_refused_confirmation_change_nothing(settings: Settings) -> None:
    refusal = Confirmation(answer=False)
    counted = await run_forget(settings, ADA, dry_run=True, confirm=refusal)
    assert not refusal.lines
    [line] = counted
    assert line.startswith("of ada: 2 sessions, 1 of them in the archive, with 2 tasks and 2 app")
    assert await forget(settings, refusal) == ["nothing else was changed"]
    assert refusal.lines == counted
    assert await run_forget(settings, ADA, dry_run=True, confirm=refusal) == counted


async def test_result_and_remaining_copies_are_printed(settings: Settings) -> None:
    counted, done, log, rest = await forget(settings, Confirmation())
    assert counted.startswith("of ada: 2 sessions")
    assert done.startswith("forgotten: ada, tombstone ")
    assert "append-only file of the embedded engine was rewritten" in log
    assert rest == OUT_OF_REACH
    [nothing] = await forget(settings, Confirmation())
    assert nothing.startswith("of ada: 0 sessions")


async def test_owner_key_is_accepted_in_place_of_a_name(settings: Settings) -> None:
    assert OwnerName(ADA.key).key == ADA.key == Principal("ada").key
    assert OwnerName("pr_none").key == Principal("pr_none").key
    assert OwnerName("ada", "other").key != ADA.key
    [line] = await run_forget(
        settings, OwnerName("ada", "other"), dry_run=True, confirm=Confirmation()
    )
    assert line.startswith("of ada: 0 sessions")


@pytest.mark.requirement("FGT-3")
async def test_hold_blocks_forgetting_until_released(settings: Settings) -> None:
    assert await run_hold(settings, ADA, "case 12") == ["held: ada, case 12"]
    assert await run_hold(settings, ADA, "case 13") == ["held: ada, case 12"]
    blocked, _ = await run_forget(settings, ADA, dry_run=True, confirm=Confirmation())
    assert blocked.startswith("cannot be forgotten: ada is held since ")
    with pytest.raises(InvalidInput, match=r"owner: ada is held since .*: case 12"):
        await forget(settings, Confirmation())
    assert await run_release(settings, ADA) == ["released: ada"]
    assert await run_release(settings, ADA) == ["no hold on ada"]
    assert len(await forget(settings, Confirmation())) == 4


@pytest.mark.parametrize(
    ("owner", "tenant", "field"), [(" ", "default", "owner"), ("a", "", "tenant")]
)
async def test_empty_name_is_refused(
    settings: Settings, owner: str, tenant: str, field: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: is empty"):
        await forget(settings, Confirmation(), OwnerName(owner, tenant))
    with pytest.raises(InvalidInput, match="reason: is empty"):
        await run_hold(settings, ADA, " ")


async def forget_sessions(
    settings: Settings,
    confirmation: Confirmation,
    selection: SessionSelection,
    *,
    dry_run: bool = False,
) -> list[str]:
    return await run_forget_sessions(settings, selection, dry_run=dry_run, confirm=confirmation)


async def find_session(settings: Settings) -> str:
    """The archived session."""
    async with reach_store(settings) as store:
        [session] = await store.archive.list_sessions(ALL_SHARDS)
    return session


async def test_forgetting_one_session_keeps_the_other(settings: Settings) -> None:
    session, confirmation = await find_session(settings), Confirmation()
    selection = SessionSelection(session)
    [counted] = await forget_sessions(settings, confirmation, selection, dry_run=True)
    assert counted.startswith(f"of {session}: 1 session, 1 of them in the archive, with 1 task ")
    assert not confirmation.lines
    refusal = Confirmation(answer=False)
    assert await forget_sessions(settings, refusal, selection) == ["nothing else was changed"]
    assert refusal.lines == [counted]
    _, done, log, rest = await forget_sessions(settings, confirmation, selection)
    assert done.startswith("forgotten: 1 session, tombstone ")
    assert "append-only file of the embedded engine was rewritten" in log
    assert rest == OUT_OF_REACH
    [nothing] = await forget_sessions(settings, confirmation, selection)
    assert nothing.startswith(f"of {session}: 0 sessions")
    [left] = await run_forget(settings, ADA, dry_run=True, confirm=confirmation)
    assert left.startswith("of ada: 1 session, 0 of them in the archive")
    for path in settings.data_dir.rglob("*"):
        assert not path.is_file() or session.encode() not in path.read_bytes()


async def test_sessions_before_a_time_are_forgotten_by_outcome(settings: Settings) -> None:
    confirmation = Confirmation()
    failed = SessionSelection(before="1ms", outcomes=("failed",))
    [none] = await forget_sessions(settings, confirmation, failed)
    assert none.startswith("of sessions from before 1ms, failed: 0 sessions")
    [early] = await forget_sessions(
        settings, confirmation, SessionSelection(before="2026-01-01T00:00:00Z")
    )
    assert early.startswith("of sessions from before 2026-01-01T00:00:00Z: 0 sessions")
    counted, *done = await forget_sessions(settings, confirmation, SessionSelection(before="1ms"))
    assert counted.startswith("of sessions from before 1ms: 2 sessions, 1 of them in the archive")
    assert len([line for line in done if line.startswith("forgotten: 1 session")]) == 2


async def test_held_session_is_kept_and_listed(settings: Settings) -> None:
    selection, confirmation = SessionSelection(await find_session(settings)), Confirmation()
    await run_hold(settings, ADA, "case 12")
    _, kept_line = await forget_sessions(settings, confirmation, selection, dry_run=True)
    assert kept_line == f"stays: {selection.session}: an owner is held"
    with pytest.raises(InvalidInput, match=r"session: se_.*: an owner is held"):
        await forget_sessions(settings, confirmation, selection)
    await run_release(settings, ADA)
    assert len(await forget_sessions(settings, confirmation, selection)) == 4


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
async def test_invalid_flags_are_refused(
    settings: Settings,
    flags: tuple[str | None, str | None, str | None, tuple[str, ...]],
    said: str,
) -> None:
    owner, session, before, outcomes = flags
    with pytest.raises(InvalidInput, match=said):
        await choose_verb(owner, "default", session, before, outcomes)(
            settings, dry_run=True, confirm=Confirmation()
        )


async def test_home_session_is_counted_and_sessions_of_others_are_listed(
    settings: Settings,
) -> None:
    ada = Principal("ada")
    offer = Offer(f"dev_{ada.home.tag}{'0' * 26}", ada, "phone", (), DeviceRights(), "hash")
    async with reach_store(settings) as store:
        await DeviceLists(make_writes(store)).change(ada, offer, "ada")
        given = await begin(store, 2, Story(owner=Principal("bob").key))
        await store.views.put_row(IndexRow(ADA.key, "echo", given.at.task, 1, "completed"))
        session = given.at.session
    counted, home, others = await run_forget(settings, ADA, dry_run=True, confirm=Confirmation())
    assert counted.startswith("of ada: 3 sessions, 1 of them in the archive")
    assert home == "with the home session: 1 device, 0 grants and 0 edited rules"
    assert others.startswith(f"stays: ada takes part in 1 session of others: {session}: passerelle")
    alone = SessionSelection(ada.home_session)
    with pytest.raises(InvalidInput, match=r"se_.*: it is a home session: forget its owner"):
        await forget_sessions(settings, Confirmation(), alone)
    *_, rest = await forget(settings, Confirmation())
    assert rest == OUT_OF_REACH
    counted, others = await run_forget(settings, ADA, dry_run=True, confirm=Confirmation())
    assert counted.startswith("of ada: 0 sessions")
    assert session in others
    assert (await forget_sessions(settings, Confirmation(), SessionSelection(session)))[
        1
    ].startswith("f")
    [counted] = await run_forget(settings, ADA, dry_run=True, confirm=Confirmation())
