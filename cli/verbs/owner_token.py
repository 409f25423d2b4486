"""``passerelle token``: the owner token, stored in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.cli.settings_flags import ConfigFlag, DataDirFlag, RedisUrlFlag, load, name_sources
from passerelle.cli.verbs.verb import make_group
from passerelle.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.runtime.common.secret import Secret


owner_token: Final = make_group("The owner token: rotate.", "token rotate", name="token")


@owner_token.command(epilog="Example: passerelle token rotate --config passerelle.yaml")
def rotate(
    config: ConfigFlag = None,
    redis_url: RedisUrlFlag = None,
    data_dir: DataDirFlag = None,
    key_lost: Annotated[
        bool, typer.Option("--key-lost", help="The secret key of the current token is lost.")
    ] = False,
) -> None:
    """Replace the owner token; running gateways use the new one."""
    from passerelle.gateway.auth.access import run_rotation
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
        raise ConfigInvalid(
            str(path), f"the new token is valid, but could not be saved: {error}"
        ) from None


@owner_token.callback()
def _group_token() -> None:
    """The owner token: rotate."""


def show_owner(token: Secret, path: Path) -> None:
    """Prints the token and the file that stores it."""
    print(f"owner token, shown this once and kept in {path}:", flush=True)
    print(f"  {token.get_secret_value()}", flush=True)
