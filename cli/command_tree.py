"""The root commands by name. The verbs of a group are imported when the group is used.

There are more than a hundred verbs and a call needs one of them. Only a list of all imports all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from passerelle.core.frozen import frozen


@frozen
class CommandModule:
    """Names that one module provides: a group, or several loose verbs.

    ``load`` returns the group first; the other commands that it returns are added to the group.
    """

    names: tuple[str, ...]
    load: Callable[[], tuple[typer.Typer, ...]]
    is_group: bool = True


class RootGroup(TyperGroup):
    """The root group: its own commands, and the lazy ones."""

    def __init__(self, *, commands: Mapping[str, Any] | None = None, **attrs: Any) -> None:  # noqa: ANN401  as typer passes them on
        super().__init__(**attrs)
        self.commands = LazyCommands(commands or {})


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, in the form that typer expects. Listing the names imports nothing."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._found: dict[str, Any] = {**own}
        self._modules = {name: module for module in COMMAND_MODULES for name in module.names}
        self._names = dict.fromkeys((*own, *self._modules))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  a command of typer, whose class is private
        if name not in self._names:
            raise KeyError(name)
        if name not in self._found:
            self._found.update(_read(self._modules[name]))
        return self._found[name]

    def __setitem__(self, name: str, command: Any) -> None:  # noqa: ANN401
        self._names[name] = None
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._found.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@cache
def _read(module: CommandModule) -> Mapping[str, Any]:
    """Returns the commands of a module, created once per process."""
    first, *others = module.load()
    for one in others:
        first.add_typer(one)
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    if module.is_group:
        holder.add_typer(first, name=module.names[0])
    else:
        holder.add_typer(first)
    return get_group(holder).commands


def _load_serve() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.serve import serve_verbs

    return (serve_verbs,)


def _load_calls() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.calls import calls

    return (calls,)


def _load_login() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.contexts import login_verbs

    return (login_verbs,)


def _load_contexts() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.contexts import contexts

    return (contexts,)


def _load_tasks() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.bulk import bulk_verb
    from passerelle.cli.verbs.task_changes import changes
    from passerelle.cli.verbs.tasks import tasks
    from passerelle.cli.verbs.watch import watch_verb

    return (tasks, changes, watch_verb, bulk_verb)


def _load_sessions() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.sessions import sessions

    return (sessions,)


def _load_turns() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.turns import turns

    return (turns,)


def _load_subagents() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.subagents import subagents

    return (subagents,)


def _load_schedules() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.schedules import schedules

    return (schedules,)


def _load_jobs() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.jobs import jobs

    return (jobs,)


def _load_approvals() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.answers import answers
    from passerelle.cli.verbs.approvals import approvals
    from passerelle.cli.verbs.inbox import inbox_verb
    from passerelle.cli.verbs.questions import asking, mutes
    from passerelle.cli.verbs.rules import rules

    return (approvals, answers, asking, mutes, rules, inbox_verb)


def _load_devices() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.devices import devices

    return (devices,)


def _load_evidence() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.evidence import evidence

    return (evidence,)


def _load_deliveries() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.deliveries import deliveries

    return (deliveries,)


def _load_overview() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.overview import overview

    return (overview,)


def _load_health() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.health import health

    return (health,)


def _load_agents() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.agents import agents

    return (agents,)


def _load_token() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.owner_token import owner_token

    return (owner_token,)


def _load_store() -> tuple[typer.Typer, ...]:
    from passerelle.cli.store_verbs import store_verbs

    return (store_verbs,)


def _load_support() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.support import support

    return (support,)


def _load_help() -> tuple[typer.Typer, ...]:
    from passerelle.cli.verbs.help import help_verbs

    return (help_verbs,)


COMMAND_MODULES: Final = (
    CommandModule(("init", "serve"), _load_serve, is_group=False),
    CommandModule(("call",), _load_calls, is_group=False),
    CommandModule(("login", "logout"), _load_login, is_group=False),
    CommandModule(("contexts",), _load_contexts),
    CommandModule(("tasks",), _load_tasks),
    CommandModule(("sessions",), _load_sessions),
    CommandModule(("turns",), _load_turns),
    CommandModule(("subagents",), _load_subagents),
    CommandModule(("schedules",), _load_schedules),
    CommandModule(("jobs",), _load_jobs),
    CommandModule(("approvals",), _load_approvals),
    CommandModule(("devices",), _load_devices),
    CommandModule(("evidence",), _load_evidence),
    CommandModule(("deliveries",), _load_deliveries),
    CommandModule(("overview",), _load_overview, is_group=False),
    CommandModule(("health",), _load_health, is_group=False),
    CommandModule(("agents",), _load_agents),
    CommandModule(("token",), _load_token),
    CommandModule(("store",), _load_store),
    CommandModule(("support-bundle",), _load_support, is_group=False),
    CommandModule(("version", "help"), _load_help, is_group=False),
)
"""In the order of the help."""
