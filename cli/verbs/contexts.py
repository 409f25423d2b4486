"""``passerelle login`` and ``passerelle contexts``: remote gateways by name."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Final

import typer

from passerelle.cli.verbs.verb import format_table, make_group

login_verbs: Final = typer.Typer()
contexts: Final = make_group(
    "Gateways that you have logged in to: list, use, show.", "contexts use team"
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@login_verbs.command(epilog="Example: passerelle login https://agents.example.com --name team")
def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the gateway.")],
    name: Annotated[str | None, typer.Option(help="Name of the context [its host].")] = None,
    token_env: Annotated[
        str | None,
        typer.Option(help="Variable with the token; else it is asked for, or read from a pipe."),
    ] = None,
) -> None:
    """Remember a gateway and its token, and use it from now on.

    The token is an API key or the owner token. It is tested first, then stored in a file that only this user can read.
    """
    from passerelle.cli.contexts import GatewayContext, read_contexts
    from passerelle.cli.control_client import ControlClient
    from passerelle.cli.http_request import UnsendableRequest, split_address
    from passerelle.runtime.common.secret import Secret

    try:
        address = split_address(url)
    except UnsendableRequest as error:
        raise typer.BadParameter(error.reason, param_hint="'URL'") from None
    called = name or re.sub(r"[^a-z0-9.-]", "-", address.hostname or "")
    text = _read_token(token_env)
    if not text:
        raise typer.BadParameter("holds no token", param_hint="--token-env")
    context = GatewayContext(called, url.rstrip("/"), Secret(text))
    found = ControlClient(context.url, context.token).get("/v1/agents")
    read_contexts().put(context).write()
    listed = found.get("agents")
    count = len(listed) if isinstance(listed, list) else 0
    print(f"logged in to {context.url} as context {called}; agents: {count}")


@login_verbs.command(epilog="Example: passerelle logout team")
def logout(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Context; else the current one.")
    ] = None,
) -> None:
    """Forget a gateway and its token."""
    from passerelle.cli.contexts import read_contexts

    known = read_contexts()
    gone = name or known.current
    if gone is None:
        raise typer.BadParameter("there is no current context", param_hint="'NAME'")
    known.remove(gone).write()
    print(f"logged out of {gone}")


@contexts.command("list", epilog="Example: passerelle contexts list")
def list_all() -> None:
    """List the gateways that you have logged in to."""
    from passerelle.cli.contexts import find_context, read_contexts

    used = find_context()
    rows = [
        ("*" if used and one.name == used.name else "", one.name, one.url)
        for one in read_contexts().contexts.values()
    ]
    for line in format_table(("", "CONTEXT", "URL"), rows):
        print(line)
    print(f"contexts: {len(rows)}")


@contexts.command(epilog="Example: passerelle contexts use team")
def use(name: NameArgument) -> None:
    """Use this gateway from now on."""
    from passerelle.cli.contexts import read_contexts

    chosen = read_contexts().use(name)
    chosen.write()
    print(f"context {name}: {chosen.find(name).url}")


@contexts.command(epilog="Example: passerelle contexts show")
def show() -> None:
    """Show which gateway commands use, and why."""
    from passerelle.cli.contexts import find_context
    from passerelle.gateway.settings.variables import CONTEXT_VARIABLE, URL_VARIABLE

    if url := os.environ.get(URL_VARIABLE):
        print(f"{url}  ({URL_VARIABLE})")
    elif context := find_context():
        source = CONTEXT_VARIABLE if os.environ.get(CONTEXT_VARIABLE) else "current"
        print(f"{context.url}  (context {context.name}, {source})")
    else:
        print("the gateway of the settings on this machine")


def _read_token(token_env: str | None) -> str:
    if token_env is not None:
        return os.environ.get(token_env, "").strip()
    if sys.stdin.isatty():
        return str(typer.prompt("Token", hide_input=True)).strip()
    return sys.stdin.read().strip()
