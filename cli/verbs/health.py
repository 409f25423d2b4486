"""``passerelle health``: checks whether a gateway accepts work, for containers, services and scripts."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.cli.settings_flags import ConfigFlag, load_local, name_sources

if TYPE_CHECKING:
    import ssl

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

    It needs no token. It uses the gateway of this machine's settings, not that of a context.
    """
    from passerelle.gateway.server_tls import trust_own_certificate
    from passerelle.gateway.settings.variables import URL_VARIABLE

    target, tls = url or os.environ.get(URL_VARIABLE) or None, None
    if target is None:
        local = load_local(name_sources(config))
        target = local.url
        tls = trust_own_certificate(local.certificate) if local.certificate else None
    for line in ask_health(
        f"{target.rstrip('/')}{'/healthz' if live else '/readyz'}", timeout, tls
    ):
        print(line)


def ask_health(url: str, timeout_s: float, tls: ssl.SSLContext | None) -> list[str]:
    """Returns the state of a gateway, then one line per notice.

    Raises:
        RemoteError: it does not respond, or is not ready.
        InvalidInput: the address is invalid.
    """
    from passerelle.cli.http_request import NoAnswer, UnsendableRequest, ask
    from passerelle.core.errors import InvalidInput, RemoteError
    from passerelle.core.wire.display import escape_text

    try:
        answer = ask("GET", url, headers={}, timeout_s=timeout_s, tls=tls)
    except UnsendableRequest as error:
        raise InvalidInput(error.field, error.reason) from None
    except NoAnswer as error:
        raise RemoteError(f"no gateway responds at {url}: {error.reason}") from None
    members = answer.read_object()
    if members is None or answer.location is not None:
        raise RemoteError(f"{url} {answer.describe_unexpected()}")
    result = {name: escape_text(str(text)) for name, text in members.items()}
    if answer.status != HTTPStatus.OK:
        raise RemoteError(f"{result.get('status', answer.status)}: {result.get('reason', url)}")
    return [result.pop("status", "ok"), *(f"{name}: {text}" for name, text in result.items())]
