"""How a function becomes a verb of the command line: it gets a Link, and has the flags that all verbs share."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, cast

import typer

from passerelle.cli.verbs.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")

KEY_HELP = "Idempotency key: whoever comes with it again gets the first answer."


def add_verb(
    group: typer.Typer, example: str, name: str | None = None, *, changes: bool = False
) -> Callable[[Callable[Concatenate[Link, P], None]], Callable[Concatenate[Link, P], None]]:
    """Adds a function to a group of verbs, under its own name or another.

    Its first parameter is the Link, the others are arguments and flags as typer reads them. Its docstring is the help.
    A verb that changes something has the flag ``--key`` besides.
    """

    def register(
        act: Callable[Concatenate[Link, P], None],
    ) -> Callable[Concatenate[Link, P], None]:
        shared = [*(_list_parameters(_name_key) if changes else ()), *_list_parameters(_name_flags)]
        parameters = [*_list_parameters(act)[1:], *shared]

        def run(**given: Any) -> None:  # noqa: ANN401  flags of any type
            told = {one.name: given.pop(one.name) for one in shared}
            cast("Callable[..., None]", act)(Link(**told), **given)

        run.__annotations__ = {one.name: one.annotation for one in parameters}
        # Read by inspect, and so by typer.
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        )
        group.command(
            name or getattr(act, "__name__", None),
            help=inspect.getdoc(act),
            epilog=f"Example: passerelle {example}",
        )(run)
        return act

    return register


def _name_flags(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    url: Annotated[
        str | None,
        typer.Option(help="The gateway; else PASSERELLE_URL, else that of the settings."),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(help="Variable with a token; else PASSERELLE_TOKEN, else the owner's."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the owner token.")] = None,
) -> None:
    """The flags of every verb."""


def _name_key(*, key: Annotated[str | None, typer.Option(help=KEY_HELP)] = None) -> None:
    """The flag of verbs that change something."""


def _list_parameters(declared: Callable[..., None]) -> list[inspect.Parameter]:
    return [*inspect.signature(declared, eval_str=True).parameters.values()]
