"""The inbox of a person as a terminal shows it: which questions are open, which one is looked at, and what keys do.

Pure: what comes in is folded, a key gives at most one act, and nothing is decided here. A yes is always said twice; at
high risk it is spelled out. What was answered stands until the gateway says so, and is never shown as decided before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.a2a_mapping.members import object_at, objects_at, text_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.wire.json import JsonObject

YES: Final = "yes"
_GRAVE: Final = frozenset({"high", "critical"})
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "allow": ("allow_once",),
    "deny": ("reject_once", "reject_always", "cancel"),
    "reply": ("answer",),
}
_NOTES: Final = 5
_BACKSPACE: Final = frozenset({"\x7f", "\b"})
_ENTER: Final = frozenset({"\r", "\n"})
_ESCAPE: Final = "\x1b"

AnswerChoice: TypeAlias = Literal["allow", "deny", "reply"]


@dataclass(frozen=True, slots=True)
class Decide:
    """The person wants this option chosen, for the question as it stood before its eyes."""

    view: JsonObject
    option_id: str
    words: str | None = None


@dataclass(frozen=True, slots=True)
class Quit:
    """The person has seen enough."""


Act: TypeAlias = Decide | Quit


@dataclass(slots=True)
class Inbox:
    """Open questions, the oldest first. ``wish`` and ``typed`` are what is being said of the selected one."""

    selected: str | None = None
    is_open: bool = False
    wish: AnswerChoice | None = None
    typed: str = ""
    notes: deque[str] = field(default_factory=lambda: deque[str](maxlen=_NOTES))
    frozen: set[str] = field(default_factory=set[str])
    """Questions whose answer is on its way: no key does anything to them."""
    _views: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])

    def replace(self, pending: Iterable[JsonObject]) -> None:
        """Takes the whole of it, in place of what is known."""
        self._views = {text_at(view, "actionId"): view for view in pending}
        self._settle()

    def put(self, view: JsonObject) -> None:
        """A question as it stands now."""
        action = text_at(view, "actionId")
        if text_at(view, "state") != "pending":
            self.close(action, object_at(view, "decision"))
            return
        self._views[action] = view
        self.frozen.discard(action)
        self._settle()

    def close(self, action: str, decision: JsonObject) -> None:
        """A question has ended, whoever ended it."""
        view = self._views.pop(action, None)
        self.frozen.discard(action)
        if view is not None:
            who = text_at(decision, "decidedBy")
            device = text_at(decision, "deviceName") or text_at(decision, "device")
            where = f" on {device}" if device else ""
            outcome = text_at(decision, "outcome") or "closed"
            self.notes.append(f"{outcome} by {who}{where}: {text_at(view, 'title')}")
        self._settle()

    def list_all(self) -> list[JsonObject]:
        """Open questions, the oldest first."""
        return sorted(self._views.values(), key=lambda view: text_at(view, "createdAt"))

    @property
    def current(self) -> JsonObject | None:
        """The question that is selected."""
        return self._views.get(self.selected or "")

    def press(self, key: str) -> Act | None:
        """What a key does."""
        if self.wish is not None:
            return self._say(key)
        view = self.current
        match key:
            case "q" | "\x04":
                return Quit()
            case "j" | "down":
                self._move(1)
            case "k" | "up":
                self._move(-1)
            case "\r" | "\n" | " ":
                self.is_open = not self.is_open
            case "a" | "d" | "r" if view is not None and self.selected not in self.frozen:
                self._begin(view, {"a": "allow", "d": "deny", "r": "reply"}[key])
            case _:
                pass
        return None

    def describe_wish(self) -> str:
        """What is to be typed next."""
        view = self.current
        if self.wish is None or view is None:
            return "a allow · d deny · r reply · enter details · j k move · q quit"
        if self.wish == "reply":
            return f"reply: {self.typed}▏(enter sends, esc goes back)"
        if self._spells_out(view):
            return f"type {YES} to allow this at {text_at(view, 'risk')} risk: {self.typed}▏"
        return f"{self.wish} this? y / n"

    def _begin(self, view: JsonObject, wish: str) -> None:
        if find_option(view, wish) is None:
            self.notes.append(f"this approval offers no way to {wish}")
            return
        self.wish = "allow" if wish == "allow" else "deny" if wish == "deny" else "reply"
        self.typed = ""
        # Nobody says yes to what is not shown in full.
        self.is_open = True

    def _say(self, key: str) -> Act | None:
        view, wish = self.current, self.wish
        if view is None or wish is None or key == _ESCAPE:
            self.wish = None
            return None
        if wish != "reply" and not self._spells_out(view):
            self.wish = None
            return self._decide(view, wish) if key in {"y", "Y"} else None
        if key in _ENTER:
            self.wish = None
            said = self.typed.strip()
            if wish == "reply":
                return self._decide(view, wish, said) if said else None
            return self._decide(view, wish) if said.lower() == YES else None
        if key in _BACKSPACE:
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed += key
        return None

    def _spells_out(self, view: JsonObject) -> bool:
        return self.wish == "allow" and text_at(view, "risk") in _GRAVE

    def _decide(self, view: JsonObject, wish: str, words: str | None = None) -> Act | None:
        option = find_option(view, wish)
        if option is None:
            return None
        self.frozen.add(text_at(view, "actionId"))
        return Decide(view, option, words)

    def _move(self, by: int) -> None:
        names = [text_at(view, "actionId") for view in self.list_all()]
        if names:
            at = names.index(self.selected) if self.selected in names else 0
            self.selected = names[max(0, min(at + by, len(names) - 1))]

    def _settle(self) -> None:
        names = [text_at(view, "actionId") for view in self.list_all()]
        if self.selected not in names:
            # What was being said was about another question.
            self.selected, self.wish, self.typed = (names[0] if names else None), None, ""
            self.is_open = False


def find_option(view: JsonObject, wish: str) -> str | None:
    """The option that a wish means."""
    for kind in _KINDS[wish]:
        for option in objects_at(view, "options"):
            if text_at(option, "kind") == kind:
                return text_at(option, "optionId")
    return None
