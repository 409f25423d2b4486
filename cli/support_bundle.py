"""``passerelle support-bundle``: diagnostic data in one file, without secrets.

Contains the effective settings, with secrets and key hashes as ``***`` and addresses without user, password and query.
In addition, every known secret is searched for and masked in all output. Messages, tasks, artifacts and facts are not
read.
"""

from __future__ import annotations

import io
import os
import platform
import re
import resource
import sys
import tarfile
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit, urlunsplit

import httpx
import orjson
from pydantic import BaseModel

from passerelle.cli.check import run_check
from passerelle.core.errors import ConfigInvalid, InvalidInput, PasserelleError
from passerelle.core.frozen import frozen
from passerelle.core.wire.display import explain_error
from passerelle.core.wire.times import format_ms
from passerelle.gateway.server_tls import trust_own_certificate
from passerelle.gateway.settings.local_gateway import OWNER_FILE, find_local_gateway
from passerelle.gateway.settings.source import read_settings
from passerelle.gateway.settings.variables import PREFIX, TOKEN_VARIABLE
from passerelle.runtime.common.sealer import KEY_FILE
from passerelle.runtime.common.secret import MASK, Secret
from passerelle.runtime.common.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from passerelle.core.ports.chance import Clock
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.model import Settings

FORM: Final = 1
ENGINE_LOG: Final = "engine.log"
_LOG_BYTES: Final = 64 * 1024
_ASK_S: Final = 5.0
_SHORTEST: Final = 6
"""A shorter secret would match ordinary words."""
_HIDDEN: Final = re.compile(r"(?:^|_)(?:secret|token|password|credentials|key_hash|certificate)$")
_ENV_NAME: Final = re.compile(r"(?:^|_)env$")
_FILE_NAME: Final = re.compile(r"(?:secret|bearer|token|key)_file$")
_PATHS: Final = {"healthz.json": "/healthz", "readyz.json": "/readyz", "metrics.txt": "/metrics"}


@frozen
class SupportBundle:
    """Members by file name."""

    members: dict[str, bytes]

    def write(self, target: Path) -> None:
        """Writes one file with mode 0600.

        Raises:
            InvalidInput: the file exists or cannot be written.
        """
        try:
            kept = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            reason = f"cannot be written: {explain_error(error)}"
            raise InvalidInput(str(target), reason) from None
        with os.fdopen(kept, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as packed:
            for name, data in self.members.items():
                entry = tarfile.TarInfo(f"passerelle-support/{name}")
                entry.size, entry.mode = len(data), 0o600
                packed.addfile(entry, io.BytesIO(data))


async def make_bundle(sources: Sources, clock: Clock) -> SupportBundle:
    """Collects everything available; a part that fails contains its error."""
    members = {
        "about.json": _dump(_describe_machine(format_ms(clock.now_ms()))),
        "packages.txt": _lines(sorted(f"{one.name}=={one.version}" for one in distributions())),
        "variables.txt": _lines(
            sorted(name for name in sources.environ if name.startswith(PREFIX))
        ),
    }
    settings: Settings | None = None
    try:
        reading = read_settings(sources)
        settings = reading.settings
        members["faults.txt"] = _lines([str(one) for one in (*reading.faults, *reading.notices)])
    except ConfigInvalid as error:
        members["faults.txt"] = _lines([error.message])
    if settings is not None:
        members["settings.json"] = _dump(hide(cast("Json", settings.model_dump(mode="json"))))
        members["check.txt"] = await _check(sources, clock)
        members |= await _ask_gateway(settings)
        members[ENGINE_LOG] = _read_end(settings.data_dir / ENGINE_LOG)
    secrets = sorted(find_secrets(sources.environ, settings), key=len, reverse=True)
    return SupportBundle({name: _scrub(data, secrets) for name, data in members.items()})


def hide(value: Json, name: str = "") -> Json:
    """Masks secrets in settings, and removes user and query from addresses."""
    match value:
        case dict():
            return {key: hide(inner, key) for key, inner in value.items()}
        case list():
            return [hide(inner, name) for inner in value]
        case str() if _HIDDEN.search(name):
            return MASK
        case str() if "://" in value:
            return _strip_url(value)
        case _:
            return value


def find_secrets(environ: Mapping[str, str], settings: Settings | None) -> set[str]:
    """Collects the secrets that this user can read: of settings, and of variables, files and addresses there."""
    found = {environ.get(TOKEN_VARIABLE, ""), environ.get(f"{PREFIX}SECRET_KEY", "")}
    if settings is not None:
        found |= {_read_secret(settings.data_dir / name) for name in (OWNER_FILE, KEY_FILE)}
        for name, value in _walk("", settings):
            if isinstance(value, Secret):
                found.add(value.get_secret_value())
            elif _ENV_NAME.search(name):
                found.add(environ.get(value, ""))
            elif _FILE_NAME.search(name):
                found.add(_read_secret(Path(value)))
    found |= {part for text in found for part in _find_password(text)}
    parts = {part for secret in found for part in re.split(r"[\s,]+", secret)}
    return {part for part in parts if len(part) >= _SHORTEST}


def _walk(name: str, value: object) -> Iterator[tuple[str, str | Secret]]:
    """Yields each text and secret below a value, with its key."""
    match value:
        case BaseModel():
            for field, below in value:
                yield from _walk(field, below)
        case dict():
            for key, inner in cast("dict[object, object]", value).items():
                yield from _walk(str(key), inner)
        case list() | tuple():
            for item in cast("Sequence[object]", value):
                yield from _walk(name, item)
        case str() | Path():
            text = str(value)
            yield name, text
            yield from ((name, Secret(part)) for part in _find_password(text))
        case Secret():
            yield name, value
        case _:
            return


def _strip_url(text: str) -> str:
    """Strips each of several addresses, separated by commas."""
    return ",".join(_strip_one(part) for part in text.split(","))


def _strip_one(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError:
        return MASK
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host}" if at and user else host
    return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", ""))


def _find_password(text: str) -> set[str]:
    """Returns the secrets in an address: its password and the values of its query."""
    found: set[str] = set()
    for one in text.split(",") if "://" in text else ():
        with suppress(ValueError):
            parts = urlsplit(one)
            found |= {parts.password or "", *(v.partition("=")[2] for v in parts.query.split("&"))}
    return found - {""}


def _scrub(data: bytes, secrets: list[str]) -> bytes:
    for secret in secrets:
        data = data.replace(secret.encode(errors="replace"), MASK.encode("ascii"))
    return data


def _describe_machine(at: str) -> JsonObject:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "form": FORM,
        "at": at,
        "passerelle": VERSION,
        "python": sys.version,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "openFiles": {"soft": soft, "hard": hard},
    }


async def _check(sources: Sources, clock: Clock) -> bytes:
    try:
        report = await run_check(sources, clock)
    except PasserelleError as error:
        return _lines([f"check: {error}"])
    faults = [f"error: {fault}" for fault in report.faults]
    return _lines([*report.lines, *faults, report.summary])


async def _ask_gateway(settings: Settings) -> dict[str, bytes]:
    """Reads the public endpoints of the configured gateway, if it runs on this machine."""
    local = find_local_gateway(settings)
    url, tls = local.url, trust_own_certificate(local.certificate) if local.certificate else True
    members: dict[str, bytes] = {}
    async with httpx.AsyncClient(base_url=url, timeout=_ASK_S, trust_env=False, verify=tls) as http:
        for name, path in _PATHS.items():
            try:
                members[name] = (await http.get(path)).content
            except httpx.HTTPError as error:
                members[name] = _lines([f"{url} does not answer: {type(error).__name__}"])
    return members


def _read_end(path: Path) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(max(path.stat().st_size - _LOG_BYTES, 0))
            return log.read()
    except OSError as error:
        return _lines([f"{path}: {error.strerror}"])


def _read_secret(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _dump(value: Json) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")
