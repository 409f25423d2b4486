"""``python -m tools.coverage``: what the last measured run covered, area by area, against the floors.

Lines and branches count alike. The pure parts have nothing that a test could not reach, so their floor is
everything.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PURE = (
    "core/",
    "a2a_mapping/",
    "channels/session",
    "channels/cursor_check.py",
    "protocol/cursor.py",
    "protocol/frames.py",
    "protocol/frame_codec.py",
    "protocol/members.py",
    "permission_bridge/policy",
)
PURE_FLOOR = 100.0
FLOOR = 95.0


@dataclass(frozen=True, slots=True)
class Area:
    """Files of one kind; ``covered`` and ``all`` count lines and branches."""

    name: str
    floor: float
    covered: int
    all: int

    @property
    def percent(self) -> float:
        return 100.0 * self.covered / self.all if self.all else 100.0

    @property
    def holds(self) -> bool:
        return self.percent >= self.floor


def main() -> int:
    """Returns the exit status: 0 when every area is at its floor or above."""
    measure = _read()
    areas = [
        sum_up("pure", PURE_FLOOR, {p: s for p, s in measure.items() if p.startswith(PURE)}),
        sum_up("rest", FLOOR, {p: s for p, s in measure.items() if not p.startswith(PURE)}),
    ]
    for path, summary in sorted(measure.items()):
        alone = sum_up(path, PURE_FLOOR if path.startswith(PURE) else FLOOR, {path: summary})
        if not alone.holds:
            print(f"{alone.percent:6.1f} %  {path}")
    words = ", ".join(f"{a.name} {a.percent:.1f} % of {a.floor:.0f}" for a in areas)
    held = all(area.holds for area in areas)
    print(f"coverage: {words}, {'held' if held else 'missed'}")
    return 0 if held else 1


def sum_up(name: str, floor: float, summaries: Mapping[str, Mapping[str, int]]) -> Area:
    """Adds up the summaries of files as coverage's JSON report has them."""
    rows = summaries.values()
    covered = sum(row["covered_lines"] + row.get("covered_branches", 0) for row in rows)
    known = sum(row["num_statements"] + row.get("num_branches", 0) for row in rows)
    return Area(name, floor, covered, known)


def _read() -> dict[str, Mapping[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "coverage", "json", "-q", "-o", str(report)]
        subprocess.run(command, cwd=ROOT, check=True)
        files: dict[str, Any] = json.loads(report.read_text("utf-8"))["files"]
    return {path: file["summary"] for path, file in files.items()}


if __name__ == "__main__":
    sys.exit(main())
