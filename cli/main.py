"""The command ``passerelle``: parses flags, calls one function, and exits with a documented status.

Commands import what they need inside the function, so that ``--help`` and completion stay fast.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

import typer

from passerelle.cli.command_tree import RootGroup
from passerelle.cli.exit_status import ExitStatus, find_exit_status, find_hints
from passerelle.cli.settings_flags import (
    ConfigFlag,
    DataDirFlag,
    RedisUrlFlag,
    load,
    name_sources,
)
from passerelle.cli.verbs.output import write_any_text
from passerelle.core.errors import ActionClosed, InvalidInput, PasserelleError

INTERRUPTED: Final = 130

app: Final = typer.Typer(
    name="passerelle",
    cls=RootGroup,
    help="An A2A gateway with durable tasks, exactly resumable channels, and human approval.",
    epilog="Example: passerelle demo --once",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SessionFlag = Annotated[str | None, typer.Option(help="Only this session.")]


def main() -> NoReturn:
    """The console script. An error is printed as one line with hints to standard error, without a traceback."""
    write_any_text()
    try:
        status = int(app(standalone_mode=False) or ExitStatus.DONE)
        if sys.stdout is not None:  # None if the shell closed it
            sys.stdout.flush()
    except PasserelleError as error:
        _print_error(str(error), *find_hints(error), *_name_winner(error))
        status = find_exit_status(error)
    except typer.TyperException as error:
        text = error.format_message().replace("Value error, ", "", 1)
        if text.startswith("Usage: "):
            # a group without a verb: its help is the answer
            print(text)
            status = ExitStatus.DONE
        else:
            _print_error(text, "see passerelle COMMAND --help")
            status = ExitStatus.CALLER
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except OSError as error:
        status = _handle_os_error(error)
    except Exception as error:  # noqa: BLE001  the top of the process: no caller can handle it
        status = _report_bug(error)
    sys.exit(status)


def _handle_os_error(error: OSError) -> ExitStatus:
    """Commands report errors of their own files; an error that arrives here concerns standard output."""
    if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EPIPE}:
        return _report_bug(error)
    # otherwise the interpreter flushes the rest at exit and fails again
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        # the reader has closed the pipe; typer exits with the same status when it detects that
        return ExitStatus.REMOTE
    _print_error(f"standard output could not be written: {os.strerror(error.errno)}")
    return ExitStatus.CALLER


def _report_bug(error: Exception) -> ExitStatus:
    _print_error(
        f"internal error: {type(error).__name__}: {error}",
        "PASSERELLE_LOG_LEVEL=debug prints the traceback",
    )
    if os.environ.get("PASSERELLE_LOG_LEVEL") == "debug":
        traceback.print_exc()
    return ExitStatus.FAULT


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    gateway: Annotated[
        str | None,
        typer.Option(
            "--gateway",
            metavar="CONTEXT",
            help="Ask the gateway of this context; see contexts list.",
        ),
    ] = None,
) -> None:
    """Handles the flags before a command."""
    if gateway is not None:
        os.environ["PASSERELLE_CONTEXT"] = gateway
    if version:
        from passerelle.cli.verbs.help import print_version

        print_version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog="Example: passerelle demo --once")
def demo(
    once: Annotated[
        bool, typer.Option("--once", help="Run the whole demo, check it, and exit.")
    ] = False,
) -> None:
    """Run a gateway with an embedded engine and sample agents."""
    from passerelle.demo.story import run_demo
    from passerelle.gateway.server import run

    raise typer.Exit(run(run_demo(once=once)))


@app.command(epilog="Example: passerelle check passerelle.yaml")
def check(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="YAML file; else passerelle.yaml here."),
    ] = None,
    config: ConfigFlag = None,
) -> None:
    """Validate a configuration and reach every agent in it."""
    from passerelle.cli.check import run_check
    from passerelle.gateway.server import run
    from passerelle.runtime.common.clock import SystemClock

    if file is not None and config is not None:
        raise typer.BadParameter("only one file can be checked", param_hint="--config")
    report = run(run_check(name_sources(file or config), SystemClock()))
    for line in (*report.lines, *(f"error: {fault}" for fault in report.faults), report.summary):
        print(line)
    raise typer.Exit(ExitStatus.CALLER if report.faults else ExitStatus.DONE)


@app.command(
    epilog="Example: passerelle verify --session se_15f9fpy9yz1ffjcpyabe4qd0c063 --data-dir ./state"
)
def verify(
    session: SessionFlag = None,
    *,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild read models and lists, and compare them.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Also write read models and lists that differ.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what --repair would write, and write nothing.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only this number of sessions, chosen at random.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only sessions with an event since: 2026-01-31T12:00:00Z, or 24h ago."),
    ] = None,
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Replay the stored streams and compare them with the snapshots.

    All sessions by default, including a search for snapshots and rows that belong to no session.
    """
    from passerelle.cli.verify import read_since, run_verify
    from passerelle.delegation.verification.subset import SessionSubset
    from passerelle.gateway.server import run
    from passerelle.runtime.common.clock import SystemClock, SystemIds
    from passerelle.runtime.observability.logs import configure_logs

    if dry_run and not repair:
        raise typer.BadParameter("needs --repair: give both", param_hint="--dry-run")
    if session is not None and (sample or since):
        raise typer.BadParameter(
            "--session cannot be combined with --sample or --since", param_hint="--session"
        )
    since_ms = None if since is None else read_since(since, SystemClock().now_ms())
    subset = SessionSubset(sample, since_ms, SystemIds().draw)
    settings = load(name_sources(config, redis_url=redis_url, data_dir=data_dir))
    configure_logs(settings.log_level, settings.log_format)
    is_written = repair and not dry_run
    report = run(
        run_verify(settings, session, rebuild=rebuild or repair, repair=is_written, subset=subset)
    )
    for line in (*(report.foretell() if dry_run else report.lines), report.summary):
        print(line)
    raise typer.Exit(ExitStatus.DONE if report.ok else ExitStatus.REMOTE)


@app.command(epilog="Example: passerelle key orchestrator")
def key(name: Annotated[str, typer.Argument(help="Name of the client.")]) -> None:
    """Create an API key; it is shown once, the configuration stores its hash."""
    from passerelle.gateway.auth.keys import hash_key, mint_token
    from passerelle.gateway.settings.section import NAME_PATTERN, NAME_RULE
    from passerelle.runtime.common.clock import SystemIds

    if not re.fullmatch(NAME_PATTERN, name):
        raise typer.BadParameter(f"should be {NAME_RULE}", param_hint="'name'")
    token = mint_token(SystemIds())
    print(f"key: {token.get_secret_value()}")
    print("clients:")
    print(f'  - {{name: {name}, key_hash: "{hash_key(token)}", may_call: ["*"]}}')


@app.command(epilog="Example: passerelle signing-key keys/cards.pem")
def signing_key(
    file: Annotated[Path, typer.Argument(help="New file for the key.")],
    algorithm: Annotated[
        Literal["ES256", "EdDSA"], typer.Option(help="Algorithm of the key.")
    ] = "ES256",
) -> None:
    """Create a key that signs agent cards and webhooks; the file has mode 0600."""
    from passerelle.core.wire.display import explain_error
    from passerelle.runtime.common.private_file import write_once
    from passerelle.runtime.common.signatures import load_signing_key, mint_signing_key

    try:
        is_new = write_once(file, mint_signing_key(algorithm).get_secret_value())
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be written: {explain_error(error)}") from None
    if not is_new:
        raise InvalidInput(str(file), "exists already; a key is never replaced")
    made = load_signing_key(file)
    print(f"kid: {made.kid}")
    print("signing:")
    print("  keys:")
    print(f"    - {{file: {file}}}")


def _name_winner(error: PasserelleError) -> list[str]:
    """Returns who closed the approval, for a decision that came too late (I7)."""
    if not isinstance(error, ActionClosed):
        return []
    return [f"{name}: {text}" for name, text in error.winner.items() if text is not None]


def _print_error(message: str, *hints: str) -> None:
    print(f"passerelle: error: {message}", file=sys.stderr)
    for hint in hints:
        print(f"passerelle: hint: {hint}", file=sys.stderr)
