"""The result of a verification, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from passerelle.core.frozen import frozen

DERIVED: Final = frozenset(
    {"open_set", "stray_row", "read_model", "unlisted", "listed", "inbox"},
)
"""Kinds of differences in data that can be rebuilt from streams."""


@frozen
class Problem:
    """One difference or damage. ``kind`` is a stable word for programs, ``subject`` an id."""

    kind: str
    session: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject} in {self.session}: {self.detail}"


@dataclass(slots=True)
class VerifyReport:
    """Counts of what was checked, and the problems found."""

    sessions: int = 0
    events: int = 0
    entities: int = 0
    """Snapshots that were compared."""
    vendor_events: int = 0
    unknown_events: int = 0
    """Events of a class or schema that this version does not read (ENV-5, ENV-13)."""
    other_schema: int = 0
    """Snapshots of another schema than this version writes: there is nothing to compare them with."""
    earlier_form: int = 0
    """Snapshots without members that were added later and are empty here: they count as equal."""
    archived: int = 0
    """Sessions that were read from the archive."""
    trimmed: int = 0
    """Sessions whose beginning is not in the stream any more: only their chain was checked."""
    rebuilt: int = 0
    """Sessions whose read models and lists were rebuilt and compared."""
    problems: list[Problem] = field(default_factory=list[Problem])

    repaired: list[Problem] = field(default_factory=list[Problem])
    """Differences that were found and repaired."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def lines(self) -> list[str]:
        """One line for each repaired and for each remaining problem."""
        repaired = [f"repaired: {problem}" for problem in self.repaired]
        return [*repaired, *(str(problem) for problem in self.problems)]

    def foretell(self) -> list[str]:
        """One line for each problem, with whether a repair would rebuild it from the streams."""
        return [
            f"{'would repair' if one.kind in DERIVED else 'cannot repair'}: {one}"
            for one in self.problems
        ]

    @property
    def summary(self) -> str:
        """One line with all counts."""
        skipped = "".join(
            f", {count} {what}"
            for count, what in (
                (self.archived, "sessions archived"),
                (self.vendor_events, "vendor events"),
                (self.unknown_events, "unknown events"),
                (self.other_schema, "snapshots of another schema"),
                (self.earlier_form, "snapshots of an earlier form"),
                (self.trimmed, "trimmed sessions"),
                (self.rebuilt, "sessions rebuilt"),
                (len(self.repaired), "repaired"),
            )
            if count
        )
        return (
            f"verify: {self.sessions} sessions, {self.events} events, {self.entities} snapshots"
            f"{skipped}; {len(self.problems)} problems"
        )
