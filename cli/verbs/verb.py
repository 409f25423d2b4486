"""Turns a function into a verb of the command line: shared flags, connection to a gateway, output of responses.

A verb gets a ``GatewayLink`` and the flags that all verbs share. Tables and fields are for people: columns are as wide
as needed, in the given order.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, TypeAlias, cast
from urllib.parse import quote

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.cli.settings_flags import load, load_local, name_sources
from passerelle.cli.verbs.output import OutputForm, render_answer
from passerelle.cli.verbs.short_ids import expand_path
from passerelle.cli.verbs.table_layout import fit_table, read_now_ms
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.display import escape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from passerelle.cli.control_client import ControlClient
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.settings.layers import Sources
    from passerelle.gateway.settings.local_gateway import LocalGateway
    from passerelle.gateway.settings.model import Settings

TableColumn: TypeAlias = "str | Callable[[JsonObject], str]"


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Formats rows below their titles; nothing without rows. In a terminal the table is cut to its width."""
    lines = [titles, *rows]
    if len(lines) == 1:
        return
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        lines = [*fit_table(titles, lines[1:], width, read_now_ms())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def format_rows(found: Iterable[JsonObject], columns: Mapping[str, TableColumn]) -> Iterator[str]:
    """Formats a table of objects. By its title each column is a member, ``a.b`` for one of a member, or a function."""
    rows = [[_read_cell(one, column) for column in columns.values()] for one in found]
    return format_table([*columns], rows)


def _read_cell(one: JsonObject, column: TableColumn) -> str:
    if not isinstance(column, str):
        return column(one)
    *outer, name = column.split(".")
    for step in outer:
        one = object_at(one, step)
    cell = one.get(name)
    return str(cell) if isinstance(cell, str | int) else ""


def format_fields(fields: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Formats one line for each field that is not empty."""
    shown = [(name, text) for name, text in fields if text]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        yield f"{name.ljust(width)}  {text}"


def flatten(text: str, most: int = 60) -> str:
    """Returns a text in one line, cut to ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def name_title(one: JsonObject) -> str:
    """The title of an object in one line."""
    return flatten(text_at(one, "title"))


def name_next(token: str) -> list[str]:
    """How to get the next page, if there is one."""
    return [f"more: --page {token}"] if token else []


def name_repeat(answer: JsonObject) -> list[str]:
    """Returns the note for a response that was given before, under the same key."""
    return ["as before"] if answer.get("repeated") else []


PageFlag = Annotated[
    str | None, typer.Option(help="Token of the next page, printed by the list before.")
]


def make_group(about: str, example: str, *, name: str | None = None) -> typer.Typer:
    """Creates a group of commands that shows its help if called without one; ``about`` is its line in the help."""
    return typer.Typer(
        name=name,
        help=about,
        epilog=f"Example: passerelle {example}",
        no_args_is_help=True,
        rich_markup_mode=None,
    )


@frozen
class GatewayLink:
    """Connects at the first call, so that a wrong flag is reported before a missing token.

    ``key`` makes a change safe to repeat: a repeat with the same key returns the first response.
    """

    url: str | None = None
    token_env: str | None = None
    config: Path | None = None
    data_dir: Path | None = None
    as_json: bool = False
    """Whether the output is machine-readable, in any form."""
    key: str | None = None
    form: OutputForm = "json"

    def load_settings(self) -> Settings:
        """Loads all settings, for data that the gateway does not return. Raises ConfigInvalid."""
        return load(self._name_sources())

    def find_local(self) -> LocalGateway:
        """Returns the gateway of this machine, from the settings. Raises ConfigInvalid."""
        return load_local(self._name_sources())

    def _name_sources(self) -> Sources:
        return name_sources(self.config, data_dir=self.data_dir)

    def open(self) -> ControlClient:
        """Opens a client for the gateway. Raises ConfigInvalid: there is no token."""
        from passerelle.cli.control_client import open_client

        is_local = self.config is not None or self.data_dir is not None
        return open_client(self.find_local(), self.url, self.token_env, is_local=is_local)

    def read(self, path: str, params: Mapping[str, Json] | None = None) -> JsonObject:
        """Returns the response of a query; parameters without a value are omitted."""
        gateway = self.open()
        return gateway.get(expand_path(gateway, path), _leave_out(params or {}))

    def read_lines(self, path: str) -> list[JsonObject]:
        """Returns the JSON lines of a query."""
        return self.open().get_lines(path)

    def post(
        self, path: str, body: Mapping[str, Json] | None = None, key: str | None = None
    ) -> JsonObject:
        """Returns the response of a command; members without a value are omitted."""
        gateway = self.open()
        return gateway.send(
            "POST", expand_path(gateway, path), _leave_out(body or {}), key or self.key
        )

    def patch(self, path: str, body: Mapping[str, Json]) -> JsonObject:
        """Returns the response of a PATCH."""
        gateway = self.open()
        return gateway.send("PATCH", expand_path(gateway, path), _leave_out(body), self.key)

    def put(self, path: str, body: Mapping[str, Json]) -> JsonObject:
        """Returns the response of a PUT."""
        gateway = self.open()
        return gateway.send("PUT", expand_path(gateway, path), _leave_out(body), self.key)

    def delete(self, path: str) -> JsonObject:
        """Returns the response of a DELETE."""
        gateway = self.open()
        return gateway.send("DELETE", expand_path(gateway, path), {}, self.key)

    def refuse_forms(self) -> None:
        """For a verb that prints one line per change. Raises BadParameter: the form has no lines."""
        if self.as_json and self.form != "json":
            raise typer.BadParameter("must be json for a stream of changes", param_hint="--output")

    def print_answer(self, answer: JsonObject, lines: Iterable[str]) -> None:
        """Prints a response: unchanged for programs, as ``lines`` for people."""
        if self.as_json:
            print(render_answer(answer, self.form))
            return
        for line in lines:
            # escape control characters in an agent's text: they would act on the terminal
            print(escape_text(line.replace("\n", " ")))

    def print_list(self, answer: JsonObject, name: str, columns: Mapping[str, TableColumn]) -> None:
        """Prints a response that is a page of a list, for people as a table with its count and the next page."""
        found = objects_at(answer, name)
        page = name_next(text_at(answer, "nextPageToken"))
        self.print_answer(answer, [*format_rows(found, columns), f"{name}: {len(found)}", *page])


def print_now(line: str) -> None:
    """Prints one line and flushes, so that a program behind a pipe gets it at once."""
    print(line, flush=True)


def name_path(*steps: str) -> str:
    """Joins fixed steps and ids to a path.

    Raises:
        InvalidInput: an id is not UTF-8, or a step that proxies would remove.
    """
    first, *rest = steps
    try:
        quoted = [quote(step, safe="~") for step in rest]
    except UnicodeEncodeError:
        raise InvalidInput("id", "is not UTF-8") from None
    if not {"", ".", ".."}.isdisjoint(quoted):
        raise InvalidInput("id", "is not valid")
    return "/".join((first, *quoted))


def _leave_out(members: Mapping[str, Json]) -> JsonObject:
    return {name: value for name, value in members.items() if value is not None}


P = ParamSpec("P")

KEY_HELP = "Idempotency key: a repeat with the same key returns the first answer."


def add_verb(
    group: typer.Typer,
    example: str,
    name: str | None = None,
    *,
    changes: bool = False,
    is_default: bool = False,
) -> Callable[
    [Callable[Concatenate[GatewayLink, P], None]], Callable[Concatenate[GatewayLink, P], None]
]:
    """Adds a function to a group of verbs, under its own name or another.

    Its first parameter is the GatewayLink, the others are arguments and flags as typer reads them. Its docstring is the
    help. A verb that ``changes`` something also has ``--key``. ``is_default``: it runs when the group has no verb.
    """

    def register(
        act: Callable[Concatenate[GatewayLink, P], None],
    ) -> Callable[Concatenate[GatewayLink, P], None]:
        own = _list_parameters(act)[1:]
        shared = [
            *(_list_shared(_declare_key) if changes else ()),
            *_list_shared(_declare_long_output if _has_short(own, "-o") else _declare_output),
            *_list_shared(_declare_flags),
        ]
        parameters = [
            *_list_shared(_declare_context if is_default else _declare_nothing),
            *own,
            *shared,
        ]

        def run(**given: Any) -> None:  # noqa: ANN401  flags of any type
            context = cast("typer.Context | None", given.pop(_CONTEXT, None))
            if context is not None and context.invoked_subcommand is not None:
                return
            result = {one.name: given.pop(one.name) for one in shared}
            form = cast("OutputForm | None", result.pop("output"))
            result["as_json"] = result["as_json"] or form is not None
            link = GatewayLink(**result, form=form or "json")
            cast("Callable[..., None]", act)(link, **given)

        run.__annotations__ = {one.name: one.annotation for one in parameters}
        # typer reads the signature through inspect
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        )
        help_text, epilog = inspect.getdoc(act), f"Example: passerelle {example}"
        if is_default:
            # flags after the name of a verb belong to that verb
            before = {"allow_interspersed_args": False}
            group.callback(
                invoke_without_command=True, context_settings=before, help=help_text, epilog=epilog
            )(run)
        else:
            own_name = name or getattr(act, "__name__", None)
            group.command(name=own_name, help=help_text, epilog=epilog)(run)
        return act

    return register


_CONTEXT: Final = "group_context"
"""No flag of a verb has this name."""


def _declare_context(*, group_context: typer.Context) -> None:
    """Declares the typer context: tells a default verb whether another verb follows."""


def _declare_nothing() -> None:
    """Declares nothing: a verb that is not the default needs only its flags."""


def _declare_flags(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    url: Annotated[
        str | None,
        typer.Option(help="The gateway; else PASSERELLE_URL, the context, the settings."),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(help="Variable with a token; else PASSERELLE_TOKEN, else the owner's."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the owner token.")] = None,
) -> None:
    """Declares the flags of every verb."""


_OUTPUT_HELP: Final = "Print it for programs; name: only the ids."


def _declare_output(
    *,
    output: Annotated[OutputForm | None, typer.Option("--output", "-o", help=_OUTPUT_HELP)] = None,
) -> None:
    """Declares the flag of every verb that has no ``-o`` of its own."""


def _declare_long_output(
    *, output: Annotated[OutputForm | None, typer.Option("--output", help=_OUTPUT_HELP)] = None
) -> None:
    """Declares the same flag for a verb with its own ``-o``."""


def _has_short(parameters: list[inspect.Parameter], flag: str) -> bool:
    metadata = (one for each in parameters for one in getattr(each.annotation, "__metadata__", ()))
    return any(flag in (getattr(one, "param_decls", None) or ()) for one in metadata)


def _declare_key(*, key: Annotated[str | None, typer.Option(help=KEY_HELP)] = None) -> None:
    """Declares the flag of verbs that change something."""


@cache
def _list_shared(declared: Callable[..., None]) -> list[inspect.Parameter]:
    """Returns the parameters of a declaration; read once for all verbs that share it."""
    return _list_parameters(declared)


def _list_parameters(declared: Callable[..., None]) -> list[inspect.Parameter]:
    return [*inspect.signature(declared, eval_str=True).parameters.values()]
