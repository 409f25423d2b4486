"""``passerelle store export --format parquet``: the content of the engine and the archive as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.cli.store_export import find_scope, refuse
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.display import format_count
from passerelle.core.wire.times import format_ms
from passerelle.gateway.store_setup import reach_store
from passerelle.runtime.common.version import VERSION
from passerelle.store.exports.session_names import open_names
from passerelle.store.exports.tables.table_exporter import TableExporter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from passerelle.cli.store_export import ExportRequest
    from passerelle.gateway.settings.model import Settings
    from passerelle.store.exports.tables.parquet_folder import ParquetFolder
    from passerelle.store.exports.tables.table_exporter import TableSummary

WITHOUT_EXTRA: Final = "parquet takes a further library: pip install 'passerelle[parquet]'"
_NOT_SEALED: Final = (
    "not encrypted: anyone with the folder can read it, and deletions do not apply to it"
)


async def run_table_export(settings: Settings, request: ExportRequest, folder: Path) -> list[str]:
    """Writes the tables, also while a gateway runs; returns a report.

    The manifest appears in ``folder`` once the export is complete. A killed export leaves files that end in ``.part``;
    the next export into the folder replaces them.

    Raises:
        InvalidInput: pyarrow is not installed; ``folder`` is not empty or cannot be written; ``session`` or ``task`` is
            no id, or cannot be exported.
        NotFound: there is no such session or task.
        EngineFailed, StoreUnavailable: the store cannot be opened or read.
    """
    try:
        from passerelle.store.exports.tables.parquet_folder import open_folder
    except ImportError:
        raise InvalidInput("format", WITHOUT_EXTRA) from None
    async with reach_store(settings) as store:
        scope = await find_scope(store, request)
        metadata = {
            "version": VERSION,
            "runtimeId": store.runtime_id,
            "at": format_ms(store.clock.now_ms()),
        }
        with open_folder(folder, metadata) as tables, open_names(folder) as names:
            exporter = TableExporter(store.exporter.source)
            summary = await exporter.export(scope, tables, names)
            if scope.session is not None and not summary.sessions:
                raise refuse(scope.session, next(iter(summary.left_out), None))
            tables.finish({**metadata, "scope": {**scope.write()}, **summary.write()})
            return [*_describe(folder, tables, summary)]


def _describe(folder: Path, tables: ParquetFolder, summary: TableSummary) -> Iterator[str]:
    rows = ", ".join(f"{one.rows:,} {name}" for name, one in tables.files.items())
    size = sum(one.file.size for one in tables.files.values())
    yield (
        f"exported: {rows}, of {format_count(summary.sessions, 'session')}, {summary.archived:,} of them from the "
        f"archive; {format_count(size, 'byte')} in {folder}"
    )
    for reason, left in sorted(summary.left_out.items()):
        more = left.count - len(left.sessions[:_SHOWN])
        named = ", ".join(left.sessions[:_SHOWN]) + (f" and {more:,} more" if more else "")
        yield f"left out: {reason}: {named}"
    yield _NOT_SEALED


_SHOWN: Final = 3
"""Number of omitted sessions that are printed; ``export.json`` lists more."""
