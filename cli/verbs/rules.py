"""Verbs of ``passerelle approvals`` for rules: show, edit at run time, dry-run against past requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.cli.verbs.verb import GatewayLink, add_verb, flatten, format_rows, format_table
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.display import explain_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

rules: Final = typer.Typer()

_PATH: Final = "/v1/policy"
_MOST: Final = 1_000
_TRIED: Final = frozenset({"rules", "owners", "mode", "grants"})
"""Sections that can be evaluated for recorded cases; hooks and devices apply only to new ones."""

PolicyFlag = Annotated[
    Path,
    typer.Option("--policy", help="YAML: a configuration, or its section `policy` alone."),
]


@add_verb(rules, "approvals rules", "rules")
def show(link: GatewayLink) -> None:
    """Show the rules in force, and which of them were edited at run time."""
    answer = link.read(_PATH)
    link.print_answer(answer, _show(answer))


@add_verb(rules, "approvals set-rules rules.yaml --rev 3 --dry-run", "set-rules", changes=True)
def set_rules(
    link: GatewayLink,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML with `rules`, and `owners` if wanted.")
    ],
    *,
    rev: Annotated[int, typer.Option(min=1, help="The rev printed by `approvals rules`.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which decisions would change.")
    ] = False,
    tries: Annotated[
        int, typer.Option(min=0, max=1_000, help="Number of recorded cases to compare.")
    ] = 200,
) -> None:
    """Replace the edited rules at every instance; the rules of the file remain."""
    wanted: list[Json] = [*_list_rules(file, _read(file))]
    body: JsonObject = {"rules": wanted, "version": rev, "dryRun": dry_run, "tries": tries}
    answer = link.put(_PATH, body)
    link.print_answer(answer, _report(answer))


@add_verb(rules, "approvals dry-run --policy passerelle.yaml", "dry-run")
def dry_run(
    link: GatewayLink,
    policy: PolicyFlag,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="Highest number of rows.")] = 200,
) -> None:
    """Show what other rules would have decided about recent requests."""
    answer = link.post("/v1/policy/try", {"policy": _choose(_read(policy)), "limit": limit})
    link.print_answer(answer, _compare(answer))


def _read(path: Path) -> JsonObject:
    import yaml

    try:
        loaded: object = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {explain_error(error)}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(str(path), str(error).splitlines()[0]) from None
    if not isinstance(loaded, dict):
        raise InvalidInput(str(path), "is not a mapping")
    section = cast("JsonObject", loaded)
    return object_at(section, "policy") or section


def _choose(section: JsonObject) -> JsonObject:
    return {name: one for name, one in section.items() if name in _TRIED}


def _list_rules(path: Path, section: JsonObject) -> Iterator[JsonObject]:
    """Refuses unknown members instead of ignoring them: a missing rule may be the one that denies."""
    if not section.keys() & {"rules", "owners"}:
        raise InvalidInput(str(path), "has no rules")
    unknown = sorted(section.keys() - {"rules", "owners"})
    if unknown:
        raise InvalidInput(str(path), f"{unknown[0]} is allowed only in the configuration")
    yield from _take(path, "rules", section.get("rules", []))
    owners = section.get("owners", {})
    if not isinstance(owners, dict):
        raise InvalidInput(str(path), "owners is not a mapping")
    for owner, stated in owners.items():
        at = f"owners.{owner}"
        if not isinstance(stated, dict) or stated.keys() - {"rules"}:
            raise InvalidInput(str(path), f"{at} has rules and nothing else")
        yield from ({**one, "owner": owner} for one in _take(path, at, stated.get("rules", [])))


def _take(path: Path, at: str, found: Json) -> Iterator[JsonObject]:
    if not isinstance(found, list):
        raise InvalidInput(str(path), f"{at} is no list")
    for place, one in enumerate(found):
        if not isinstance(one, dict):
            raise InvalidInput(str(path), f"{at}.{place} is no rule")
        yield one


def _show(answer: JsonObject) -> Iterator[str]:
    edited = object_at(answer, "edited")
    found = objects_at(answer, "rules")
    if edited:
        # an editor of rules also sees the edited rules of other owners
        found = [one for one in found if text_at(one, "origin") != "edited"]
        found += [{**one, "origin": "edited"} for one in objects_at(edited, "rules")]
    yield from format_rows(
        found,
        {
            "RULE": "name",
            "EFFECT": "effect",
            "ABOUT": lambda one: ", ".join(texts_at(one, "about")),
            "FROM": "origin",
            "WHOSE": lambda one: text_at(one, "owner") or "everybody",
            "WHEN": lambda one: flatten(text_at(one, "when"), 60),
        },
    )
    by = text_at(edited, "editedBy")
    at = f", edited by {by} at {text_at(edited, 'editedAt')}" if by else ""
    yield f"rev {answer.get('rev')}{at}"
    unsound = text_at(answer, "unsound")
    if unsound:
        yield f"everything is denied: {unsound}"


def _report(answer: JsonObject) -> Iterator[str]:
    tried = object_at(answer, "tried")
    if tried:
        yield from _tabulate(tried)
        yield f"{tried.get('changed')} of {tried.get('lookedAt')} cases would have another decision"
    done = "dry run, nothing written" if answer.get("dryRun") is True else "in force"
    yield f"{done}: rev {answer.get('rev')}, policy {text_at(answer, 'version')}"


def _compare(answer: JsonObject) -> Iterator[str]:
    yield from _tabulate(answer)
    whole = sum(1 for one in objects_at(answer, "cases") if text_at(one, "now"))
    yield (
        f"dry run: {answer.get('changed')} of {whole} would have another decision "
        f"({answer.get('lookedAt')} evaluated)"
    )


def _tabulate(answer: JsonObject) -> Iterator[str]:
    rows = [
        [
            text_at(one, "at"),
            flatten(text_at(one, "subject"), 40),
            text_at(one, "before"),
            text_at(one, "now"),
            ", ".join(texts_at(one, "rules")),
        ]
        for one in objects_at(answer, "cases")
        if text_at(one, "now") not in {"", text_at(one, "before")}
    ]
    yield from format_table(("AT", "WHAT", "WAS", "WOULD BE", "BY"), rows)
