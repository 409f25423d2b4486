"""The command ``passerelle``: reads flags, calls one thing, ends in a status that a script can trust.

What a command needs is imported inside it, so that ``--help`` and completion stay fast.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

import typer

from passerelle.cli.exit_status import ExitStatus, find_exit_status, find_hints
from passerelle.cli.settings_flags import (
    ConfigFlag,
    DataDirFlag,
    RedisUrlFlag,
    load,
    name_sources,
)
from passerelle.cli.store_verbs import store_verbs
from passerelle.cli.verbs.agents import agents
from passerelle.cli.verbs.answers import answers
from passerelle.cli.verbs.approvals import approvals
from passerelle.cli.verbs.beginning import beginning
from passerelle.cli.verbs.bulk import bulk_verb
from passerelle.cli.verbs.calls import calls
from passerelle.cli.verbs.contexts import contexts, login_verbs
from passerelle.cli.verbs.deliveries import deliveries
from passerelle.cli.verbs.devices import devices
from passerelle.cli.verbs.evidence import evidence
from passerelle.cli.verbs.health import health
from passerelle.cli.verbs.inbox import inbox_verb
from passerelle.cli.verbs.jobs import jobs
from passerelle.cli.verbs.orientation import orientation, say_version
from passerelle.cli.verbs.output import write_any_text
from passerelle.cli.verbs.overview import overview
from passerelle.cli.verbs.owner_notice import show_owner
from passerelle.cli.verbs.questions import asking, mutes
from passerelle.cli.verbs.rules import rules
from passerelle.cli.verbs.schedules import schedules
from passerelle.cli.verbs.sessions import sessions
from passerelle.cli.verbs.subagents import subagents
from passerelle.cli.verbs.support import support
from passerelle.cli.verbs.task_changes import changes
from passerelle.cli.verbs.tasks import tasks
from passerelle.cli.verbs.turns import turns
from passerelle.cli.verbs.verb import make_group
from passerelle.cli.verbs.watch import watch_verb
from passerelle.core.errors import ActionClosed, ConfigInvalid, PasserelleError

INTERRUPTED: Final = 130

app: Final = typer.Typer(
    name="passerelle",
    help="An A2A gateway and remote-channel bridge: it keeps the task, resumes exactly, and asks the person.",
    epilog="Example: passerelle demo --once",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

owner_token: Final = make_group("The token of the owner: rotate.", "token rotate", name="token")

app.add_typer(beginning)
app.add_typer(calls)
app.add_typer(login_verbs)
app.add_typer(contexts, name="contexts")
tasks.add_typer(changes)
tasks.add_typer(watch_verb)
tasks.add_typer(bulk_verb)
app.add_typer(tasks, name="tasks")
app.add_typer(sessions, name="sessions")
app.add_typer(turns, name="turns")
app.add_typer(subagents, name="subagents")
app.add_typer(schedules, name="schedules")
app.add_typer(jobs, name="jobs")
approvals.add_typer(answers)
approvals.add_typer(asking)
approvals.add_typer(mutes)
approvals.add_typer(rules)
approvals.add_typer(inbox_verb)
app.add_typer(approvals, name="approvals")
app.add_typer(devices, name="devices")
app.add_typer(evidence, name="evidence")
app.add_typer(deliveries, name="deliveries")
app.add_typer(overview)
app.add_typer(health)
app.add_typer(agents, name="agents")
app.add_typer(owner_token)
app.add_typer(store_verbs)
app.add_typer(support)
app.add_typer(orientation)

SessionFlag = Annotated[str | None, typer.Option(help="Only this session.")]


def main() -> NoReturn:
    """The console script. An error is one line and its hints on standard error, never a traceback."""
    write_any_text()
    try:
        status = int(app(standalone_mode=False) or ExitStatus.DONE)
    except PasserelleError as error:
        _complain(str(error), *find_hints(error), *_name_winner(error))
        status = find_exit_status(error)
    except typer.TyperException as error:
        said = error.format_message().replace("Value error, ", "", 1)
        if said.startswith("Usage: "):
            # A group of verbs alone: what it has is the answer.
            print(said)
            status = ExitStatus.DONE
        else:
            _complain(said, "passerelle COMMAND --help says what there is")
            status = ExitStatus.CALLER
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except Exception as error:  # noqa: BLE001  the top of the process: nothing above can tell
        _complain(
            f"fault: {type(error).__name__}: {error}", "PASSERELLE_LOG_LEVEL=debug shows where"
        )
        if os.environ.get("PASSERELLE_LOG_LEVEL") == "debug":
            traceback.print_exc()
        status = ExitStatus.FAULT
    sys.exit(status)


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
    """What stands before any command."""
    if gateway is not None:
        os.environ["PASSERELLE_CONTEXT"] = gateway
    if version:
        say_version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog="Example: passerelle demo --once")
def demo(
    once: Annotated[
        bool, typer.Option("--once", help="Play the whole story, check it, and exit.")
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
        raise typer.BadParameter("one file is all that is checked", param_hint="--config")
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

    Of all sessions, unless some are chosen; snapshots and rows that belong to no session are looked for only then.
    """
    from passerelle.cli.verify import read_since, run_verify
    from passerelle.delegation.verification.subset import SessionSubset
    from passerelle.gateway.server import run
    from passerelle.runtime.common.clock import SystemClock, SystemIds
    from passerelle.runtime.observability.logs import configure_logs

    if dry_run and not repair:
        raise typer.BadParameter("says what --repair would do: give both", param_hint="--dry-run")
    if session is not None and (sample or since):
        raise typer.BadParameter("one session is all that is looked at", param_hint="--session")
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
    """Create an API key; it is shown once, the configuration has its hash."""
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
    file: Annotated[Path, typer.Argument(help="Where the key is kept; nothing is there yet.")],
    algorithm: Annotated[
        Literal["ES256", "EdDSA"], typer.Option(help="Algorithm of the key.")
    ] = "ES256",
) -> None:
    """Create a key that signs agent cards and webhooks; the file has mode 0600."""
    from passerelle.runtime.common.private_file import load_or_mint
    from passerelle.runtime.common.signatures import load_signing_key, mint_signing_key

    kept = load_or_mint(file, lambda: mint_signing_key(algorithm).get_secret_value())
    if not kept.minted:
        raise typer.BadParameter("is there already; a key is never replaced", param_hint="'file'")
    made = load_signing_key(file)
    print(f"kid: {made.kid}")
    print("signing:")
    print("  keys:")
    print(f"    - {{file: {file}}}")


@owner_token.command(epilog="Example: passerelle token rotate --config passerelle.yaml")
def rotate(
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
    key_lost: Annotated[
        bool, typer.Option("--key-lost", help="The secret key of the current token is lost.")
    ] = False,
) -> None:
    """Replace the owner token, also at running gateways."""
    from passerelle.gateway.auth.rotation import run_rotation
    from passerelle.gateway.server import run
    from passerelle.runtime.common.private_file import replace_private
    from passerelle.runtime.observability.logs import configure_logs

    settings = load(name_sources(config, redis_url=redis_url, data_dir=data_dir))
    configure_logs(settings.log_level, settings.log_format)
    token, path = run(run_rotation(settings, key_lost=key_lost))
    show_owner(token, path)
    try:
        replace_private(path, token.get_secret_value())
    except OSError as error:
        raise ConfigInvalid(str(path), f"the token counts, and cannot be kept: {error}") from None


@owner_token.callback()
def _group_token() -> None:
    """The token of the owner: rotate."""


def _name_winner(error: PasserelleError) -> list[str]:
    """Whoever decides too late learns who closed the approval (I7)."""
    if not isinstance(error, ActionClosed):
        return []
    return [f"{name}: {said}" for name, said in error.winner.items() if said is not None]


def _complain(message: str, *hints: str) -> None:
    print(f"passerelle: error: {message}", file=sys.stderr)
    for hint in hints:
        print(f"passerelle: hint: {hint}", file=sys.stderr)
