"""``passerelle store``: flags of the verbs that open the store themselves, with or without a running gateway.

Each verb imports its module inside the function, so that ``--help`` stays fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.cli.settings_flags import (
    ConfigFlag,
    DataDirFlag,
    RedisUrlFlag,
    load,
    name_sources,
)
from passerelle.cli.verbs.verb import make_group

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.model import Settings

store_verbs: Final = make_group(
    "The store: size, deletion, holds, export, import, backup.",
    "store stats",
    name="store",
)

OwnerFlag = Annotated[str, typer.Option(help="Name of a client or person, or an owner key (pr_…).")]
TenantFlag = Annotated[str, typer.Option(help="Tenant of the owner.")]


@store_verbs.command(epilog="Example: passerelle store stats --config passerelle.yaml")
def stats(
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, sizes in bytes.")] = False,
) -> None:
    """Measure the content of the store, also while a gateway runs."""
    import json

    from passerelle.cli.store_stats import run_stats
    from passerelle.gateway.server import run
    from passerelle.runtime.observability.logs import configure_logs

    settings = load(name_sources(config, redis_url=redis_url, data_dir=data_dir))
    configure_logs(settings.log_level, settings.log_format)
    found = run(run_stats(settings))
    for line in (json.dumps(found.to_json(), indent=2),) if as_json else found.lines:
        print(line)


@store_verbs.command(epilog="Example: passerelle store forget --owner orchestrator --dry-run")
def forget(  # noqa: PLR0917  each parameter is a flag, not positional
    owner: Annotated[
        str | None,
        typer.Option(help="Everything of a client or person: name, or owner key (pr_…)."),
    ] = None,
    session: Annotated[str | None, typer.Option(help="Id of one session.")] = None,
    before: Annotated[
        str | None,
        typer.Option(help="Sessions that ended before: 2026-01-31T12:00:00Z, or 400d ago."),
    ] = None,
    outcome: Annotated[
        list[str] | None,
        typer.Option(help="With --before: only where each task is completed, failed, cancelled …"),
    ] = None,
    tenant: TenantFlag = "default",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be deleted, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip questions.")] = False,
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Permanently delete an owner, a session, or old sessions."""
    from passerelle.cli.store_forget import choose_verb

    def confirm(lines: Sequence[str]) -> bool:
        if yes:
            return True
        print("\n".join(lines))
        return typer.confirm("Forget all of it, for good?")

    verb = choose_verb(owner, tenant, session, before, tuple(outcome or ()))
    _run_store_verb(
        name_sources(config, redis_url=redis_url, data_dir=data_dir),
        lambda settings: verb(settings, dry_run=dry_run, confirm=confirm),
    )


@store_verbs.command(
    epilog="Example: passerelle store hold --owner orchestrator --reason 'case 12'"
)
def hold(
    owner: OwnerFlag,
    reason: Annotated[str, typer.Option(help="Reason, shown when a deletion is refused.")],
    tenant: TenantFlag = "default",
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Protect the data of an owner from deletion until it is released."""
    from passerelle.cli.store_forget import OwnerName, run_hold

    name = OwnerName(owner, tenant)
    _run_store_verb(
        name_sources(config, redis_url=redis_url, data_dir=data_dir),
        lambda settings: run_hold(settings, name, reason),
    )


@store_verbs.command(epilog="Example: passerelle store release --owner orchestrator")
def release(
    owner: OwnerFlag,
    tenant: TenantFlag = "default",
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Remove a hold."""
    from passerelle.cli.store_forget import OwnerName, run_release

    name = OwnerName(owner, tenant)
    _run_store_verb(
        name_sources(config, redis_url=redis_url, data_dir=data_dir),
        lambda settings: run_release(settings, name),
    )


@store_verbs.command(
    name="export", epilog="Example: passerelle store export away.psx --owner orchestrator"
)
def export_sessions(
    file: Annotated[
        Path, typer.Argument(metavar="PATH", help="The file, or for parquet the folder, to write.")
    ],
    *,
    form: Annotated[
        Literal["sessions", "parquet"],
        typer.Option("--format", help="A file for store import, or tables for analysis."),
    ] = "sessions",
    everything: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    owner: Annotated[
        str | None, typer.Option(help="Only of a client or person, or of an owner key (pr_…).")
    ] = None,
    tenant: TenantFlag = "default",
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    task: Annotated[str | None, typer.Option(help="Only the session of this task.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only with an event since: 2026-01-31T12:00:00Z, or 24h ago."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only without an event since.")] = None,
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Write sessions to a file for any gateway, or to Parquet tables."""
    from passerelle.cli.store_export import ExportFlags, run_export
    from passerelle.cli.store_tables import run_table_export

    request = ExportFlags(everything, owner, tenant, session, task, since, until).read()
    run_verb = run_table_export if form == "parquet" else run_export
    _run_store_verb(
        name_sources(config, redis_url=redis_url, data_dir=data_dir),
        lambda settings: run_verb(settings, request, file),
    )


@store_verbs.command(
    name="import", epilog="Example: passerelle store import away.psx --config passerelle.yaml"
)
def import_sessions(
    file: Annotated[Path, typer.Argument(help="What store export has written.")],
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Import the sessions of an export, with the same ids and bytes."""
    from passerelle.cli.exit_status import ExitStatus
    from passerelle.cli.store_import import run_import
    from passerelle.gateway.server import run
    from passerelle.runtime.observability.logs import configure_logs

    settings = load(name_sources(config, redis_url=redis_url, data_dir=data_dir))
    configure_logs(settings.log_level, settings.log_format)
    report = run(run_import(settings, file))
    print("\n".join(report.lines))
    raise typer.Exit(ExitStatus.CALLER if report.left_alone else ExitStatus.DONE)


@store_verbs.command(
    epilog="Example: passerelle store backup /backups/2026-01-31 --data-dir ./state"
)
def backup(
    directory: Annotated[Path, typer.Argument(help="Folder for the backup: new, or empty.")],
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Back up the data directory of the embedded engine, also while it runs."""
    from passerelle.cli.store_backup import run_backup

    _run_store_verb(
        name_sources(config, data_dir=data_dir),
        lambda settings: run_backup(settings, directory),
    )


@store_verbs.command(
    epilog="Example: passerelle store restore /backups/2026-01-31 --data-dir ./state"
)
def restore(
    directory: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="What store backup has made.")
    ],
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Restore a backup into a new or empty data directory."""
    from passerelle.cli.store_backup import run_restore

    _run_store_verb(
        name_sources(config, data_dir=data_dir),
        lambda settings: run_restore(settings, directory),
    )


def _run_store_verb(
    sources: Sources, run_verb: Callable[[Settings], Coroutine[None, None, list[str]]]
) -> None:
    """Runs a verb on the configured store and prints its report."""
    from passerelle.gateway.server import run
    from passerelle.runtime.observability.logs import configure_logs

    settings = load(sources)
    configure_logs(settings.log_level, settings.log_format)
    for line in run(run_verb(settings)):
        print(line)


@store_verbs.callback()
def _group_store() -> None:
    """The store: size, deletion, holds, export, import, backup."""
