"""``passerelle health``: whether a gateway takes work, for containers, services and scripts."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from passerelle.cli.settings_flags import ConfigFlag, load, name_sources

if TYPE_CHECKING:
    import ssl

    from passerelle.core.wire.json import JsonObject

health: Final = typer.Typer()


@health.command(name="health", epilog="Example: passerelle health --config passerelle.yaml")
def show_health(
    url: Annotated[
        str | None, typer.Option(help="The gateway; else PASSERELLE_URL, else the settings.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Check only whether the process lives (/healthz).")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=60, help="Longest wait for an answer, in seconds.")
    ] = 4.0,
    config: ConfigFlag = None,
) -> None:
    """Check whether the gateway accepts work (/readyz). Exit status 1 means no.

    It needs no token. The gateway is the one of this machine's settings, not that of a context.
    """
    from passerelle.cli.control_client import find_own_url
    from passerelle.gateway.server_tls import trust_own_certificate
    from passerelle.gateway.settings.source import URL_VARIABLE

    target, tls = url or os.environ.get(URL_VARIABLE) or None, None
    if target is None:
        settings = load(name_sources(config))
        target = find_own_url(settings)
        tls = trust_own_certificate(settings.tls) if settings.tls else None
    for line in ask_health(
        f"{target.rstrip('/')}{'/healthz' if live else '/readyz'}", timeout, tls
    ):
        print(line)


def ask_health(url: str, timeout_s: float, tls: ssl.SSLContext | None) -> list[str]:
    """What a gateway says of itself: its state, and below that one line for each notice.

    Raises:
        RemoteError: it does not answer, or it is not ready.
    """
    import httpx

    from passerelle.core.errors import RemoteError
    from passerelle.core.wire.display import escape_text

    try:
        with httpx.Client(timeout=timeout_s, trust_env=False, verify=tls or True) as http:
            answer = http.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise RemoteError(f"no gateway answers at {url}: {reason}") from None
    try:
        said: object = answer.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise RemoteError(f"{url} does not answer as a gateway does")
    members = cast("JsonObject", said)
    told = {name: escape_text(str(text)) for name, text in members.items()}
    if answer.status_code != HTTPStatus.OK:
        raise RemoteError(f"{told.get('status', answer.status_code)}: {told.get('reason', url)}")
    return [told.pop("status", "ok"), *(f"{name}: {text}" for name, text in told.items())]
