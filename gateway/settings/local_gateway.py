"""Finds the gateway on this machine, for a command that only queries it: reads five settings.

Building the configuration model takes a second, and such a command does not need it: the gateway validated its
configuration when it started. So plain values are taken directly from the layers. Anything else (a port that is not a
number, an unknown name in a section, an unknown top-level key) goes to the model, which reports the fault. Decision
0211.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.frozen import frozen
from passerelle.gateway.settings.layers import read_layers
from passerelle.gateway.settings.schema import SchemaPlace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.model import Settings

OWNER_FILE: Final = "owner-token"
"""In ``data_dir``."""
_TLS_KEYS: Final = frozenset({"cert", "key"})
_MOST_PORT: Final = 65_535
_DIGITS: Final = re.compile("[0-9]{1,5}")


@frozen
class LocalGateway:
    """The defaults are those of the model; ``certificate`` is the gateway's own, None for plain text."""

    host: str = "127.0.0.1"
    port: int = 8080
    is_open: bool = False
    """Whether it needs no token."""
    data_dir: Path = Path("~/.local/state/passerelle")
    certificate: Path | None = None

    @property
    def url(self) -> str:
        """Its URL on this machine."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104  compared, never bound
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def owner_file(self) -> Path:
        """The file with the owner token."""
        return self.data_dir / OWNER_FILE


def read_local_gateway(sources: Sources) -> tuple[LocalGateway, tuple[str, ...]]:
    """The gateway of these settings, and notices for the user.

    Raises:
        ConfigInvalid: one of these settings is not valid.
    """
    layers = read_layers(sources)
    found = _read_plain(layers.merge())
    if found is not None:
        return found, layers.environment.notices
    # A fault, or a form that only the model parses; the extra second is acceptable here.
    from passerelle.gateway.settings.source import load_settings  # noqa: PLC0415

    settings, notices = load_settings(sources)
    return find_local_gateway(settings), notices


def find_local_gateway(settings: Settings) -> LocalGateway:
    """The same from loaded settings."""
    return LocalGateway(
        host=settings.host,
        port=settings.port,
        is_open=settings.auth == "open",
        data_dir=settings.data_dir,
        certificate=settings.tls.cert if settings.tls else None,
    )


def _read_plain(tree: Mapping[str, object]) -> LocalGateway | None:
    """None if a value is not plain, or a key is unknown: a mistyped ``port`` would lead to another gateway."""
    if not set(tree) <= set(SchemaPlace.root().names()):
        return None
    usual = LocalGateway()
    host, auth = tree.get("host", usual.host), tree.get("auth", "keys")
    port, tls = _read_port(tree.get("port", usual.port)), tree.get("tls")
    folder, certificate = _read_path(tree.get("data_dir", usual.data_dir)), _read_certificate(tls)
    if not isinstance(host, str) or not host or auth not in ("keys", "open"):
        return None
    if port is None or folder is None or (certificate is None and tls is not None):
        return None
    return LocalGateway(host, port, auth == "open", folder, certificate)


def _read_port(value: object) -> int | None:
    """An integer, or digits from a variable or a flag."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    plain = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_PORT
    return cast("int", value) if plain else None


def _read_path(value: object) -> Path | None:
    try:
        return Path(value).expanduser() if isinstance(value, str | Path) else None
    except RuntimeError:
        # The home directory does not exist.
        return None


def _read_certificate(tls: object) -> Path | None:
    """The certificate of a section with no other keys than its two."""
    if not isinstance(tls, dict):
        return None
    section = cast("dict[object, object]", tls)
    if not set(section) <= _TLS_KEYS or _read_path(section.get("key", "")) is None:
        return None
    return _read_path(section.get("cert"))
