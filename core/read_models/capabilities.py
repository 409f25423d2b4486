"""What a gateway covers of the scope of its specification, part by part (ID-17)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from passerelle.core.wire.record import change, record

CapabilityState: TypeAlias = Literal["supported", "adapted", "unavailable"]


@record
class CapabilityPart:
    """One part of a scope item: ``adapted`` or ``unavailable`` because of ``reasons``.

    ``requirements`` are rows of the ledger; each row of a supported part has a passing scenario.
    """

    name: str
    state: CapabilityState
    requirements: tuple[str, ...]
    reasons: tuple[str, ...] = ()


@record
class Capability:
    """One item of the scope, in the order of the specification."""

    name: str
    title: str
    state: CapabilityState
    parts: tuple[CapabilityPart, ...]


@record
class CapabilityPage:
    """All items, for this version and this configuration."""

    version: str
    capabilities: tuple[Capability, ...]


def join_parts(name: str, title: str, parts: Iterable[CapabilityPart]) -> Capability:
    """The state of an item is the common state of its parts, or adapted if they differ."""
    listed = tuple(parts)
    states: set[CapabilityState] = {part.state for part in listed}
    return Capability(name, title, states.pop() if len(states) == 1 else "adapted", listed)


def show_capabilities(
    version: str, built: Iterable[Capability], switched_off: Mapping[str, str]
) -> CapabilityPage:
    """The page of the built items; parts in ``switched_off`` (reason by ``item.part``) are unavailable."""
    shown = (
        join_parts(
            item.name,
            item.title,
            (_switch(part, switched_off.get(f"{item.name}.{part.name}")) for part in item.parts),
        )
        for item in built
    )
    return CapabilityPage(version, tuple(shown))


def _switch(part: CapabilityPart, reason: str | None) -> CapabilityPart:
    if reason is None:
        return part
    return change(part, state="unavailable", reasons=(reason, *part.reasons))
