"""Words that nobody from the field searches for: none of them names a type or a function, or is said to users.

``NAMES`` are what types and functions of the product are not called, each with its standard term. ``PHRASES`` are not
said anywhere: in code, help texts, messages or pages. Decisions say what was said at their time.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.unused import ROOMS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
NAMES: Final = {
    "Doorkeeper": "CachedAuthenticator",
    "recognize": "authenticate_cached",
    "Reading": "ParsedHead, Subscription, LoadResult",
    "Kept": "HeadCache",
    "Told": "ResultCallback",
    "Consulting": "PolicyConsultation",
    "Unheard": "ConsultationRequired",
    "Heard": "HookResults",
    "stencil": "template",
    "rehearsal": "sample render",
    "refrain": "repeated fragment",
    "Sight": "RunContext",
    "Means": "DriverDeps, DeliveryDeps",
    "Ground": "CoreServices",
    "Surroundings": "Dependencies",
    "Debts": "PendingReturns",
    "Ladder": "FollowStrategy",
    "Patience": "Timeouts",
    "Crowd": "PollThrottle",
    "Habits": "PeerBehaviour",
    "Glimpse": "FeedSnapshot",
    "Whereabouts": "ActionIndex",
    "Ahead": "Prefetch",
    "Afterwards": "DeferredQueue",
    "Surge": "BurstDetector",
    "CollectorRest": "GcPause",
    "Nudging": "InstanceSignals",
    "LateDuties": "DutiesProxy",
    "Elsewhere": "RemoteDrivers, RetryElsewhere",
    "letting_go": "release_run",
    "Spot": "A2aRoute",
    "Words": "MessageSummary",
    "Pace": "BatchWindow",
    "Spill": "BlobOverflow",
    "Terms": "AppendOptions",
    "Tally": "LabeledCounter",
    "Spread": "LabeledHistogram",
    "Sizes": "IntHistogram",
    "Gathering": "Coalescer",
    "carry_out": "execute_batch, execute_call",
    "Standing": "IndexChanges",
    "derive_standing": "derive_index_changes",
    "write_before_act": "write_replicated",
    "write_now": "write_unbatched",
    "place": "shard_of",
}
PHRASES: Final = {
    "standing yes": "standing approval",
    "another try": "retry",
    "how manieth": "position among",
    "in one's back": "meanwhile",
    "waits for company": "waits for others to share its flush",
    "everything allowed": "everything auto-approved",
    "it is grave": "it is of high risk",
    "has lived through": "events of",
    "whoever": "the caller, the process, the approver",
    "of ours": "of the gateway, local",
    "is none of": "is not one of",
    "as good as": "treated as",
    "has a say": "may allow or reject",
    "nobody can tell": "it is unknown",
    "over all instances together": "cluster-wide",
}
_PHRASE: Final = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, PHRASES))})(?![\w-])")
"""Names of files and functions that contain one are left alone."""
_TEXTS: Final = {".py", ".md", ".lua", ".js", ".ts", ".json", ".yaml", ".toml"}
_NOT_NOW: Final = (
    *("docs/decisions/", "tools/words.py", "tests/", "bench/"),
    "docs/threat-model.md",  # quotes names of tests
)


def list_named(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each type and function of a module that is not private."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                yield node.lineno, name
            case _:
                pass


def find_names(rooms: tuple[str, ...] = ROOMS) -> Iterator[str]:
    """One line for each name that is in ``NAMES``."""
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            for line, name in list_named(path):
                if name in NAMES:
                    yield f"{path.relative_to(ROOT)}:{line}: {name} is called {NAMES[name]}"


def list_files() -> list[str]:
    """Paths of the files that are kept."""
    listed = subprocess.run(
        ["git", "ls-files"],  # noqa: S607 - git of PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


def find_phrases() -> Iterator[str]:
    """One line for each place of a phrase in a text file that is about the present."""
    for name in list_files():
        path = ROOT / name
        if name.startswith(_NOT_NOW) or path.suffix not in _TEXTS or path.is_symlink():
            continue
        for number, line in enumerate(path.read_text("utf-8").lower().splitlines(), 1):
            for phrase in map(str, _PHRASE.findall(line)):
                yield f"{name}:{number}: {phrase!r} is {PHRASES[phrase]!r}"


def main() -> int:
    """Whether anything is called or said so."""
    found = [*find_names(), *find_phrases()]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
