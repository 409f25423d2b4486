"""Table definitions, and the files written from rows: nothing is lost, and memory is bounded by a row group."""

from __future__ import annotations

import gc
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passerelle.core.errors import InvalidInput
from passerelle.core.ids import ALL_SHARDS, derive_id
from passerelle.store.exports.session_names import open_names
from passerelle.store.exports.tables import parquet_folder
from passerelle.store.exports.tables.column import measure, write_money
from passerelle.store.exports.tables.parquet_folder import PART, open_folder, pa, parquet
from passerelle.store.exports.tables.session_rows import TABLES
from tests.support.full_disk import limit_files
from tests.support.tables import check_whole, read_table

if TYPE_CHECKING:
    from passerelle.store.exports.tables.column import CellValue, ColumnKind

SAMPLES: Final[dict[ColumnKind, CellValue]] = {
    "text": "text",
    "json": "{}",
    "time": 1,
    "count": 1,
    "money": Decimal("0.000001"),
    "flag": True,
}


def make_row(name: str, **cells: CellValue) -> tuple[CellValue, ...]:
    [table] = (one for one in TABLES if one.name == name)
    return tuple(cells.get(one.name, SAMPLES[one.kind]) for one in table.columns)


def test_columns_have_names_for_queries_and_a_sentence_each() -> None:
    for table in TABLES:
        names = [one.name for one in table.columns]
        assert len({*names}) == len(names)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
        assert all(one.meaning.endswith((".", "…")) for one in table.columns), table.name
        assert all(
            (one.kind == "time") == (one.name == "at" or one.name.endswith("_at"))
            for one in table.columns
        )


def test_amounts_are_exact_to_the_last_millionth() -> None:
    for micros in (0, 1, -1, 999_999, 2**63 - 1, -(2**63)):
        assert write_money(micros) * 1_000_000 == micros
    assert measure("2026-01-31T12:00:00.250Z", "2026-01-31T13:00:01+01:00") == 750
    assert measure("2026-01-31T12:00:00Z", None) is None


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"])),
            st.integers(-(2**63), 2**63 - 1),
            st.one_of(st.none(), st.integers(0, 2**63 - 1)),
            st.integers(0, 4_102_444_800_000),
        ),
        max_size=40,
    ),
    cut=st.integers(0, 40),
)
def test_rows_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, int, int | None, int]],
    cut: int,
) -> None:
    folder = tmp_path_factory.mktemp("tables") / "export"
    cells = [
        make_row("costs", agent=agent, amount=write_money(micros), input_tokens=tokens, at=at_ms)
        for agent, micros, tokens, at_ms in rows
    ]
    with open_folder(folder, {}) as tables:
        tables.add_rows({"costs": cells[:cut]})
        tables.add_rows({"costs": cells[cut:]})
        tables.finish({})
    check_whole(folder)
    assert [
        (row["agent"], row["amount"], row["input_tokens"], round(row["at"].timestamp() * 1000))
        for row in read_table(folder, "costs")
    ] == [(agent, write_money(micros), tokens, at_ms) for agent, micros, tokens, at_ms in rows]


@pytest.mark.requirement("EXP-5")
def test_memory_does_not_grow_with_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 256 * 1024
    monkeypatch.setattr(parquet_folder, "_GROUP_BYTES", most)
    monkeypatch.setattr(parquet_folder, "_BATCH_LETTERS", most // 4)
    before, peak, count = pa.total_allocated_bytes(), 0, 2_000
    with open_folder(tmp_path / "tables", {}) as tables:
        for number in range(count):
            # No two alike: nothing is saved by saying it once.
            payload = f"{number:08}" * 512
            tables.add_rows({"events": [make_row("events", sequence=number, payload=payload)]})
            peak = max(peak, pa.total_allocated_bytes() - before)
        tables.finish({})
    written = parquet.ParquetFile(tmp_path / "tables" / "events.parquet").metadata
    assert written.num_rows == count
    assert count * 4096 // most // 2 < written.num_row_groups < count // 8
    assert peak < 8 * most
    assert [row["sequence"] for row in read_table(tmp_path / "tables", "events")] == [*range(count)]


def stop_early(folder: Path, error: BaseException) -> None:
    with open_folder(folder, {}) as tables:
        tables.add_rows({"events": [make_row("events")]})
        raise error


@pytest.mark.requirement("EXP-5")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failed_export_leaves_no_files(tmp_path: Path, error: BaseException) -> None:
    for is_there in (False, True):
        folder = tmp_path / f"tables-{is_there}"
        if is_there:
            folder.mkdir()
        expected = InvalidInput if isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            stop_early(folder, error)
        assert folder.exists() is is_there
        assert not is_there or not list(folder.iterdir())


@pytest.mark.requirement("EXP-5")
@pytest.mark.parametrize("most", [0, 3, 4, 5, 100])
def test_a_disk_that_was_full_before_leaves_nothing(tmp_path: Path, most: int) -> None:
    with limit_files(most), pytest.raises(InvalidInput, match=r"File too large$"):
        fill_folder(tmp_path / "tables")
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("EXP-5")
def test_an_interrupt_is_raised_even_if_the_disk_is_full(
    tmp_path: Path,
) -> None:
    with limit_files(4), pytest.raises(KeyboardInterrupt):
        stop_early(tmp_path / "tables", KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []


def fill_folder(folder: Path) -> None:
    with open_folder(folder, {}) as tables:
        tables.finish({})


@pytest.mark.requirement("EXP-5")
def test_a_folder_is_whole_with_its_manifest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that is killed between two names leaves no manifest, and its files name what they are."""
    folder, renamed = tmp_path / "tables", list[str]()
    rename = os.rename

    def note(before: str, name: str, **places: int) -> None:
        assert not (folder / "manifest.sha256").exists()
        assert before == name + PART
        rename(before, name, **places)
        renamed.append(name)

    monkeypatch.setattr(os, "rename", note)
    with open_folder(folder, {}) as tables:
        tables.finish({})
    assert renamed[-2:] == ["export.json", "manifest.sha256"]
    assert len(renamed) == len(TABLES) + 2
    check_whole(folder)
    (folder / "manifest.sha256").unlink()
    with (
        pytest.raises(InvalidInput, match="of an export that was stopped: delete it"),
        open_folder(folder, {}),
    ):
        pass


def test_names_are_listed_once_also_beyond_what_is_kept_in_memory(tmp_path: Path) -> None:
    shard, other = ALL_SHARDS[3], ALL_SHARDS[4]
    some = [derive_id("se", shard, str(number)) for number in range(6_000)]
    with open_names(tmp_path) as names:
        for name in (*some, *some[:10], derive_id("se", other, "x")):
            names.add(name)
        assert names.list(shard) == {*some}
        names.add(some[0])
        assert len(names.list(shard)) == len(some)
        assert len(names.list(other)) == 1
        assert names.list(ALL_SHARDS[5]) == set()
    assert list(tmp_path.iterdir()) == []
