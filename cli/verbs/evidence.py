"""``passerelle evidence``: exports bundles of facts to files, and checks them without a gateway."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import text_at, texts_at, whole_at
from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.verbs.verb import GatewayLink, add_verb, make_group, name_path
from passerelle.core.errors import ConfigInvalid, InvalidInput, RemoteError
from passerelle.core.wire.display import explain_error

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

_PATH: Final = "/v1/evidence"
_PART_BYTES: Final = 1024 * 1024
_SCOPES: Final = {"se_": "sessionId", "th_": "threadId", "task_": "taskId"}

evidence: Final = make_group(
    "Evidence: export, replay, review, verify, key, checker.", "evidence export task_2f…"
)

ScopeArgument = Annotated[
    str, typer.Argument(metavar="SCOPE", help="Id of a session, a thread or a task.")
]
TurnFlag = Annotated[str | None, typer.Option(help="Only this turn of a session or thread.")]
ThroughFlag = Annotated[
    int | None,
    typer.Option(min=1, help="The last sequence to include [the newest]."),
]
OutFlag = Annotated[
    Path | None, typer.Option("--out", "-o", help="File to write [<evidence id>.jsonl.gz].")
]


@add_verb(evidence, "evidence export task_2f… --out task.jsonl.gz")
def export(
    link: GatewayLink,
    scope: ScopeArgument,
    turn: TurnFlag = None,
    through: ThroughFlag = None,
    out: OutFlag = None,
) -> None:
    """Write the events of a scope to a file that can be checked elsewhere."""
    _export(link, "", _compose(scope, turn, through), out)


@add_verb(evidence, "evidence replay se_2f…")
def replay(
    link: GatewayLink,
    scope: ScopeArgument,
    turn: TurnFlag = None,
    through: ThroughFlag = None,
    out: OutFlag = None,
) -> None:
    """Write the data to reproduce the work: inputs, options, decisions."""
    _export(link, "replay", _compose(scope, turn, through), out)


@add_verb(evidence, "evidence review th_2f… --through 120")
def review(
    link: GatewayLink,
    scope: ScopeArgument,
    turn: TurnFlag = None,
    through: ThroughFlag = None,
    out: OutFlag = None,
) -> None:
    """Write a summary of the events in sentences, with the open items."""
    _export(link, "review", _compose(scope, turn, through), out)


@evidence.command(
    epilog="Example: passerelle evidence verify task.jsonl.gz --trust=XoOoVYusnLiWP4uctYDO…"
)
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle.")],
    trust: Annotated[
        list[str] | None,
        typer.Option(help="Fingerprint of a gateway, or id of a device's key; may be repeated."),
    ] = None,
    content: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", help="Content to compare with hashes in the bundle; may be repeated."
        ),
    ] = None,
) -> None:
    """Check a bundle, and print who approved what; needs no gateway."""
    from passerelle.cli import check_evidence

    given = [f"--trust={one}" for one in trust or ()]
    given += [f"--file={one}" for one in content or ()]
    status = check_evidence.main([*given, "--", str(file)])
    raise typer.Exit(ExitStatus(status))


@add_verb(evidence, "evidence key")
def key(link: GatewayLink) -> None:
    """Print the fingerprints of the keys that sign the bundles of this gateway."""
    from passerelle.gateway.settings.values import find_evidence_keys

    found = find_evidence_keys(link.load_settings())
    result: list[Json] = [*found]
    link.print_answer({"fingerprints": result}, [f"fingerprint: {one}" for one in found])


@evidence.command(epilog="Example: passerelle evidence checker > check_evidence.py")
def checker() -> None:
    """Print the program that checks bundles, for a machine that has only Python."""
    sys.stdout.write(files("passerelle.cli").joinpath("check_evidence.py").read_text("utf-8"))


def _compose(scope: str, turn: str | None, through: int | None) -> JsonObject:
    name = next((one for prefix, one in _SCOPES.items() if scope.startswith(prefix)), None)
    if name is None:
        raise typer.BadParameter("is not an id of a session, thread or task", param_hint="'SCOPE'")
    return {name: scope, "turnId": turn, "through": through}


def _export(link: GatewayLink, kind: str, of: JsonObject, out: Path | None) -> None:
    from passerelle.cli import check_evidence

    result = link.post(name_path(_PATH, kind) if kind else _PATH, of)
    content = _download(link, result)
    path = out or Path(f"{text_at(result, 'evidenceId')}.jsonl.gz")
    _write(path, content)
    report = check_evidence.check(content)
    link.print_answer(
        result,
        [
            f"{path}  {len(content)} bytes",
            *(report.about if report.ok else [*report.lines()]),
            *(f"note: {one}" for one in texts_at(result, "notes")),
            f"evidence: {report.origin}",
        ],
    )
    if not report.ok:
        raise typer.Exit(ExitStatus.REMOTE)


def _download(link: GatewayLink, result: JsonObject) -> bytes:
    """Downloads the whole file and verifies its hash."""
    place: dict[str, Json] = {"sessionId": text_at(result, "sessionId")}
    if text_at(result, "scope") == "task":
        place = {"taskId": text_at(result, "subject")}
    gateway, content = link.open(), b""
    path, size = name_path(_PATH, text_at(result, "evidenceId")), whole_at(result, "size") or 0
    while len(content) < size:
        part = gateway.get(path, {**place, "offset": len(content), "limit": _PART_BYTES})
        read = base64.b64decode(text_at(part, "content"))
        if not read:
            break
        content += read
    if hashlib.sha256(content).hexdigest() != text_at(result, "blob"):
        raise RemoteError("the gateway did not return the whole bundle; nothing was written")
    return content


def _write(path: Path, content: bytes) -> None:
    """Writes the file atomically; an existing file must have the same bytes.

    Raises:
        InvalidInput: it has others.
        ConfigInvalid: it cannot be read or written.
    """
    if path.is_dir():
        raise ConfigInvalid("--out", f"{path} is a folder: name a file in it")
    try:
        if path.exists() and path.read_bytes() != content:
            raise InvalidInput("--out", f"{path} exists already with other content")
    except OSError as error:
        raise ConfigInvalid("--out", f"{path} cannot be read: {explain_error(error)}") from None
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigInvalid("--out", f"cannot be written: {explain_error(error)}") from None
