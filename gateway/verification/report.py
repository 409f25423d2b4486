"""What a verification found, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it must be. ``kind`` is a word for programs, ``subject`` an id."""

    kind: str
    session: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject} in {self.session}: {self.detail}"


@dataclass(slots=True)
class VerifyReport:
    """What was looked at, and what was found."""

    sessions: int = 0
    events: int = 0
    entities: int = 0
    """Snapshots that were compared."""
    vendor_events: int = 0
    unknown_events: int = 0
    """Events of a class or schema that this version does not read (ENV-5, ENV-13)."""
    other_schema: int = 0
    """Snapshots of another schema than this version writes: there is nothing to compare them with."""
    trimmed: int = 0
    """Sessions whose beginning is not in the stream any more: only their chain was checked."""
    rebuilt: int = 0
    """Sessions whose read models and lists were made again and compared."""
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def ok(self) -> bool:
        """Whether all is as it must be."""
        return not self.problems

    @property
    def lines(self) -> list[str]:
        """A line for each problem."""
        return [str(problem) for problem in self.problems]

    @property
    def summary(self) -> str:
        """One line about all of it."""
        skipped = "".join(
            f", {count} {what}"
            for count, what in (
                (self.vendor_events, "vendor events"),
                (self.unknown_events, "unknown events"),
                (self.other_schema, "snapshots of another schema"),
                (self.trimmed, "trimmed sessions"),
                (self.rebuilt, "sessions rebuilt"),
            )
            if count
        )
        return (
            f"verify: {self.sessions} sessions, {self.events} events, {self.entities} snapshots"
            f"{skipped}; {len(self.problems)} problems"
        )
