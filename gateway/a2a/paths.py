"""The paths below an agent: the JSON-RPC endpoint, the HTTP+JSON operations, the card.

A2A 1.0 sections 9.1 and 11.3, A2A 0.3 section 3.5.3 below ``/v1``. Colons are literal, nothing redirects, and
``/tasks/{id}:subscribe`` has two methods, since the specification names both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Final, TypeAlias

from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.version import CURRENT, LEGACY, Version
from passerelle.core.agent_name import ROUTER, name_tenant
from passerelle.core.frozen import frozen

ROOT: Final = "/"
AGENTS: Final = "/agents"
CARD: Final = "/.well-known/agent-card.json"


class Resource(StrEnum):
    """Resources that are not operations."""

    ENDPOINT = "jsonrpc"
    CARD = "card"


PathTarget: TypeAlias = Method | Resource


@frozen
class A2aRoute:
    """The targets of a path by HTTP method, none for an unknown path; ``named`` are its path parameters.

    ``version`` is the one whose HTTP+JSON has this path; the JSON-RPC endpoint is the same for all versions.
    """

    verbs: Mapping[str, PathTarget] = field(default_factory=dict[str, PathTarget])
    named: Mapping[str, str] = field(default_factory=dict[str, str])
    version: Version = CURRENT


_ENDPOINT: Final = A2aRoute({"POST": Resource.ENDPOINT})
_FIXED: Final[Mapping[str, A2aRoute]] = {
    "": _ENDPOINT,
    "/": _ENDPOINT,
    "/message:send": A2aRoute({"POST": Method.SEND_MESSAGE}),
    "/message:stream": A2aRoute({"POST": Method.SEND_STREAMING_MESSAGE}),
    "/tasks": A2aRoute({"GET": Method.LIST_TASKS}),
    "/extendedAgentCard": A2aRoute({"GET": Method.GET_EXTENDED_CARD}),
    CARD: A2aRoute({"GET": Resource.CARD, "HEAD": Resource.CARD}),
}
_ROOT_PATHS: Final = frozenset(_FIXED) - {""}
_ROOT_TASKS: Final = "/tasks/"
_LEGACY_PREFIX: Final = "/v1/"
_LEGACY_FIXED: Final[Mapping[str, A2aRoute]] = {
    "/message:send": A2aRoute({"POST": Method.SEND_MESSAGE}, version=LEGACY),
    "/message:stream": A2aRoute({"POST": Method.SEND_STREAMING_MESSAGE}, version=LEGACY),
    "/card": A2aRoute({"GET": Method.GET_EXTENDED_CARD}, version=LEGACY),
}
"""Without a list of tasks: 0.3 has it in one binding only, and does not define its result."""
_TASK_VERBS: Final[Mapping[str, Mapping[str, PathTarget]]] = {
    "": {"GET": Method.GET_TASK},
    ":cancel": {"POST": Method.CANCEL_TASK},
    ":subscribe": {"GET": Method.SUBSCRIBE_TO_TASK, "POST": Method.SUBSCRIBE_TO_TASK},
}
_CONFIGS: Final[Mapping[str, PathTarget]] = {
    "GET": Method.LIST_PUSH_CONFIGS,
    "POST": Method.CREATE_PUSH_CONFIG,
}
_CONFIG: Final[Mapping[str, PathTarget]] = {
    "GET": Method.GET_PUSH_CONFIG,
    "DELETE": Method.DELETE_PUSH_CONFIG,
}
_TASK: Final = re.compile(r"/tasks/([^/]+?)(:cancel|:subscribe)?")
_PUSH: Final = re.compile(r"/tasks/([^/]+)/pushNotificationConfigs(?:/([^/]+))?")
NO_ROUTE: Final = A2aRoute()


def split_path(path: str, served: Collection[str] = ()) -> tuple[str, str] | None:
    """The agent that a path names and the rest of the path; None for a path that names no agent.

    The root is the gateway's own agent, except its HTTP+JSON of 0.3: ``/v1`` is the control plane there.

    The first part of the rest belongs to the name if it is the name of a tenant in ``served``.
    """
    if not path.startswith(f"{AGENTS}/"):
        return (ROUTER, path) if is_at_root(path) else None
    agent, slash, rest = path[len(AGENTS) + 1 :].partition("/")
    if rest:
        tenant, below, under = rest.partition("/")
        if (name := name_tenant(agent, tenant)) in served:
            return name, below + under
    return agent, slash + rest


def is_at_root(path: str) -> bool:
    """Whether a path without an agent name may belong to the gateway's own agent."""
    return path in _ROOT_PATHS or path.startswith(_ROOT_TASKS)


def find_route(rest: str) -> A2aRoute:
    """The route of the rest of a path behind the agent; ``NO_ROUTE`` for an unknown one."""
    fixed = _FIXED.get(rest)
    if fixed is not None:
        return fixed
    if not rest.startswith(_LEGACY_PREFIX):
        return _find_task(rest, CURRENT)
    rest = rest[len(_LEGACY_PREFIX) - 1 :]
    return _LEGACY_FIXED.get(rest) or _find_task(rest, LEGACY)


def _find_task(rest: str, version: Version) -> A2aRoute:
    if match := _TASK.fullmatch(rest):
        return A2aRoute(_TASK_VERBS[match[2] or ""], {"id": match[1]}, version)
    if match := _PUSH.fullmatch(rest):
        task, config = match.groups()
        if config:
            return A2aRoute(_CONFIG, {"taskId": task, "id": config}, version)
        return A2aRoute(_CONFIGS, {"taskId": task}, version)
    return NO_ROUTE
