"""The axes of a conversation, their valid combinations, and a plan that covers every pair of values.

The plan is the same on every run: candidates are drawn with a fixed seed, and the one that covers the most open pairs
is taken (Cohen et al., "The AETG system", 1997).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import combinations
from random import Random
from typing import Final, TypeAlias

SDK_1: Final = "sdk_1"
SDK_0_3: Final = "sdk_0_3"
JAVASCRIPT: Final = "javascript"
PLAIN: Final = "plain"
"""The hand-written agent."""

AXES: Final[dict[str, tuple[str, ...]]] = {
    "agent": (SDK_1, SDK_0_3, JAVASCRIPT, PLAIN),
    "streams": ("streams", "unary"),
    "resends": ("resends", "updates"),
    "stores": ("stores", "forgets"),
    "asks": ("words", "form", "credential", "dialect"),
    "answer": ("text", "data", "file", "url", "mixed", "native"),
    "caller": ("unary", "stream", "immediately", "subscribe"),
    "binding": ("JSONRPC", "HTTP+JSON", "GRPC"),
    "version": ("1.0", "0.3"),
    "event": ("first", "second", "silent", "refused", "raises", "restart"),
    "stance": ("stays", "leaves", "cancels", "twice"),
}

Values: TypeAlias = tuple[str, ...]
_SEED: Final = 20
_CANDIDATES: Final = 40


@dataclass(frozen=True, slots=True)
class Case:
    """One conversation: a value of each axis."""

    agent: str
    streams: str
    resends: str
    stores: str
    asks: str
    answer: str
    caller: str
    binding: str
    version: str
    event: str
    stance: str

    @property
    def values(self) -> Values:
        """Its values in the order of the axes."""
        return tuple(asdict(self).values())

    @property
    def interface(self) -> tuple[str, str]:
        """Binding and version of the connection to the agent: those of the caller, if the agent has them."""
        offered = INTERFACES[self.agent]
        wanted = (
            ("JSONRPC" if self.needs_tap and self.binding == "GRPC" else self.binding),
            self.version,
        )
        if wanted in offered:
            return wanted
        return next((one for one in offered if one[0] == wanted[0]), offered[0])

    @property
    def needs_tap(self) -> bool:
        """Whether its answer is held on its way back, which is possible over HTTP."""
        return self.event == "restart" or self.stance == "leaves"

    @property
    def is_older_grpc(self) -> bool:
        """Whether its caller uses gRPC of 0.3: then it names no agent."""
        return (self.binding, self.version) == ("GRPC", "0.3")

    def __str__(self) -> str:
        return "/".join(self.values)


INTERFACES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    SDK_1: (
        ("JSONRPC", "1.0"),
        ("HTTP+JSON", "1.0"),
        ("GRPC", "1.0"),
        ("JSONRPC", "0.3"),
        ("HTTP+JSON", "0.3"),
        ("GRPC", "0.3"),
    ),
    SDK_0_3: (("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")),
    JAVASCRIPT: (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0")),
    PLAIN: (("JSONRPC", "1.0"), ("JSONRPC", "0.3")),
}
"""The capabilities of each agent."""


def is_possible(case: Case) -> bool:
    """Whether such a conversation is possible; each line states why one is not."""
    return not any(
        (
            # The library decides: the Python SDKs move a question into history with the next status, the JavaScript
            # SDK at once.
            case.agent in {SDK_1, SDK_0_3} and case.stores == "stores",
            case.agent == JAVASCRIPT and case.stores == "forgets",
            # An answer in a dialect answers a request in that dialect only.
            (case.asks == "dialect") != (case.answer == "native"),
            # The library decodes the bytes of a file twice over HTTP+JSON and gRPC of 0.3, and fails.
            case.agent == SDK_1
            and case.interface in {("HTTP+JSON", "0.3"), ("GRPC", "0.3")}
            and case.answer in {"file", "mixed"},
            # A gRPC call of 0.3 names no agent: behind a gateway it reaches only one.
            case.is_older_grpc
            and (case.needs_tap or (case.agent, case.streams) != (SDK_1, "streams")),
            # A caller that cancels sends no answer, and one of two concurrent answers is the first.
            case.stance in {"cancels", "twice"} and case.event != "first",
            # A caller that was disconnected by the gateway is gone.
            case.stance == "leaves" and case.event in {"refused", "raises", "restart"},
        )
    )


BROKEN: Final[tuple[dict[str, str], ...]] = (
    # Each of these failed once, whatever the other axes were.
    {"agent": SDK_1, "streams": "unary", "answer": "text", "caller": "unary"},
    {"agent": SDK_0_3, "streams": "unary", "answer": "text", "caller": "unary"},
    {"agent": JAVASCRIPT, "streams": "unary", "answer": "text", "caller": "unary"},
    {"agent": JAVASCRIPT, "streams": "streams", "resends": "updates", "caller": "unary"},
    {"agent": PLAIN, "event": "refused", "caller": "unary", "streams": "streams"},
    {"agent": PLAIN, "event": "refused", "caller": "stream", "streams": "unary"},
    {"agent": PLAIN, "event": "refused", "caller": "immediately"},
    {"caller": "stream", "version": "1.0", "asks": "words", "binding": "JSONRPC"},
    {"caller": "stream", "version": "1.0", "asks": "words", "binding": "HTTP+JSON"},
    {"caller": "stream", "version": "1.0", "asks": "words", "binding": "GRPC"},
    {"caller": "stream", "version": "1.0", "asks": "credential", "binding": "JSONRPC"},
    {"asks": "credential", "answer": "text", "caller": "unary"},
    {"asks": "credential", "answer": "data", "caller": "unary"},
    {"answer": "data", "asks": "form", "caller": "unary"},
    {"answer": "file", "asks": "words", "caller": "unary"},
    {"answer": "url", "asks": "words", "caller": "unary"},
    {"asks": "dialect", "answer": "native", "caller": "unary"},
    {"asks": "dialect", "answer": "native", "caller": "stream"},
    {"agent": PLAIN, "stores": "forgets", "event": "second"},
    {"agent": PLAIN, "stores": "stores", "event": "second"},
    {"agent": SDK_0_3, "event": "raises", "caller": "unary"},
    {"agent": SDK_1, "event": "raises", "caller": "unary"},
    {"agent": JAVASCRIPT, "event": "raises", "caller": "stream"},
    {"agent": SDK_1, "streams": "unary", "event": "restart"},
)
OLDER_GRPC: Final = {"agent": SDK_1, "binding": "GRPC", "version": "0.3"}
OF_OLDER_GRPC: Final[tuple[dict[str, str], ...]] = (
    # Chosen by hand, since only one agent can be called like this: each value of each axis that this agent supports.
    {"caller": "unary"},
    {"caller": "stream", "resends": "resends"},
    {"caller": "immediately", "answer": "url"},
    {"caller": "subscribe", "asks": "form", "answer": "data"},
    {"caller": "unary", "asks": "form", "answer": "url", "event": "second"},
    {"caller": "stream", "asks": "credential", "answer": "text"},
    {"caller": "unary", "asks": "credential", "answer": "data"},
    {"caller": "unary", "asks": "dialect", "answer": "native"},
    {"caller": "stream", "asks": "dialect", "answer": "native", "event": "second"},
    {"caller": "unary", "answer": "data", "event": "refused"},
    {"caller": "stream", "answer": "url", "event": "refused", "resends": "resends"},
    {"caller": "unary", "event": "raises"},
    {"caller": "stream", "event": "raises"},
    {"caller": "immediately", "event": "second", "asks": "credential", "answer": "url"},
    {"caller": "unary", "stance": "cancels"},
    {"caller": "stream", "stance": "twice"},
)
_USUAL: Final = {
    "event": "first",
    "stance": "stays",
    "binding": "JSONRPC",
    "version": "1.0",
    "streams": "streams",
    "resends": "updates",
    "asks": "words",
    "answer": "text",
    "caller": "unary",
    "agent": SDK_1,
    "stores": "forgets",
}


def plan(*, whole: bool) -> list[Case]:
    """The cases: those found broken, and every pair; the whole plan has every triple of the most important axes."""
    cases = [_fill(wanted) for wanted in BROKEN]
    older = [_fill(OLDER_GRPC | wanted) for wanted in OF_OLDER_GRPC]
    _cover(cases, 2, lambda _: True)
    if whole:
        _cover(cases, 3, lambda axes: "event" in axes or "answer" in axes or "stance" in axes)
    return list(dict.fromkeys(cases + older))


def _fill(wanted: dict[str, str]) -> Case:
    """The default conversation with the wanted values, and with further changes if it would be impossible otherwise."""
    draw = Random(str(sorted(wanted.items())))
    made = Case(**(_USUAL | wanted))
    while not is_possible(made):
        free = {name: draw.choice(values) for name, values in AXES.items() if name not in wanted}
        kept = draw.sample(sorted(free), len(free) // 2)
        made = Case(**(_USUAL | {name: free[name] for name in kept} | wanted))
    return made


def _cover(cases: list[Case], size: int, wants: Callable[[tuple[str, ...]], bool]) -> None:
    """Adds cases until every possible combination of ``size`` values is covered."""
    draw = Random(_SEED)
    chosen = [axes for axes in combinations(AXES, size) if wants(axes)]

    def list_of(case: Case) -> set[tuple[tuple[str, str], ...]]:
        named = asdict(case)
        return {tuple((axis, named[axis]) for axis in axes) for axes in chosen}

    everything = [_draw(draw, {}) for _ in range(4000)]
    open_ones: set[tuple[tuple[str, str], ...]] = set()
    for case in everything:
        open_ones |= list_of(case)
    for case in cases:
        open_ones -= list_of(case)
    while open_ones:
        wanted = dict(min(open_ones))
        candidates = [_draw(draw, wanted) for _ in range(_CANDIDATES)]
        best = max(candidates, key=lambda case: len(list_of(case) & open_ones))
        cases.append(best)
        open_ones -= list_of(best)


def _draw(draw: Random, wanted: dict[str, str]) -> Case:
    while True:
        case = Case(**({name: draw.choice(values) for name, values in AXES.items()} | wanted))
        if is_possible(case) and not case.is_older_grpc:
            return case


def find_case(text: str) -> Case:
    """The case that a line of a run names."""
    return Case(*text.split("/"))
