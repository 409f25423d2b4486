"""State of the inbox screen: pending approvals, the selected one, and the effect of keys.

Pure: events are folded, a key returns at most one action, and nothing is decided here. Approving always takes a second
key; at high risk the word is typed out. A decided approval is shown as pending until the gateway confirms the decision.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.wire.json import JsonObject

YES: Final = "yes"
_HIGH_RISK: Final = frozenset({"high", "critical"})
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


@frozen
class Decide:
    """The person chose this option, for the approval as it was displayed."""

    view: JsonObject
    option_id: str
    words: str | None = None


@frozen
class Quit:
    """The person quits."""


Act: TypeAlias = Decide | Quit


@dataclass(slots=True)
class Inbox:
    """Pending approvals, the oldest first. ``choice`` and ``typed`` are the unfinished input for the selected one."""

    selected: str | None = None
    is_open: bool = False
    choice: AnswerChoice | None = None
    typed: str = ""
    notes: deque[str] = field(default_factory=lambda: deque[str](maxlen=_NOTES))
    frozen: set[str] = field(default_factory=set[str])
    """Approvals whose decision is in flight; keys have no effect on them."""
    _views: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])

    def replace(self, pending: Iterable[JsonObject]) -> None:
        """Replaces all pending approvals."""
        self._views = {text_at(view, "actionId"): view for view in pending}
        self._fix_selection()

    def put(self, view: JsonObject) -> None:
        """Adds or updates an approval; removes it if it is no longer pending."""
        action = text_at(view, "actionId")
        if text_at(view, "state") != "pending":
            self.close(action, object_at(view, "decision"))
            return
        self._views[action] = view
        self.frozen.discard(action)
        self._fix_selection()

    def close(self, action: str, decision: JsonObject) -> None:
        """Removes an approval that was closed, by this or another device."""
        view = self._views.pop(action, None)
        self.frozen.discard(action)
        if view is not None:
            who = text_at(decision, "decidedBy")
            device = text_at(decision, "deviceName") or text_at(decision, "device")
            where = f" on {device}" if device else ""
            outcome = text_at(decision, "outcome") or "closed"
            self.notes.append(f"{outcome} by {who}{where}: {text_at(view, 'title')}")
        self._fix_selection()

    def list_all(self) -> list[JsonObject]:
        """Returns the pending approvals, the oldest first."""
        return sorted(self._views.values(), key=lambda view: text_at(view, "createdAt"))

    @property
    def current(self) -> JsonObject | None:
        """The selected approval."""
        return self._views.get(self.selected or "")

    def press(self, key: str) -> Act | None:
        """Applies a key; returns the action to execute."""
        if self.choice is not None:
            return self._take_choice_key(key)
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
                self._begin_choice(view, {"a": "allow", "d": "deny", "r": "reply"}[key])
            case _:
                pass
        return None

    def describe_prompt(self) -> str:
        """Returns the prompt for the next input."""
        view = self.current
        if self.choice is None or view is None:
            return "a allow · d deny · r reply · enter details · j k move · q quit"
        if self.choice == "reply":
            return f"reply: {self.typed}▏(enter sends, esc goes back)"
        if self._needs_typed_yes(view):
            return f"type {YES} to allow this at {text_at(view, 'risk')} risk: {self.typed}▏"
        return f"{self.choice} this? y / n"

    def _begin_choice(self, view: JsonObject, choice: str) -> None:
        if find_option(view, choice) is None:
            self.notes.append(f"this approval has no option to {choice}")
            return
        self.choice = "allow" if choice == "allow" else "deny" if choice == "deny" else "reply"
        self.typed = ""
        # show the details before the person can confirm
        self.is_open = True

    def _take_choice_key(self, key: str) -> Act | None:
        view, choice = self.current, self.choice
        if view is None or choice is None or key == _ESCAPE:
            self.choice = None
            return None
        if choice != "reply" and not self._needs_typed_yes(view):
            self.choice = None
            return self._decide(view, choice) if key in {"y", "Y"} else None
        if key in _ENTER:
            self.choice = None
            text = self.typed.strip()
            if choice == "reply":
                return self._decide(view, choice, text) if text else None
            return self._decide(view, choice) if text.lower() == YES else None
        if key in _BACKSPACE:
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed += key
        return None

    def _needs_typed_yes(self, view: JsonObject) -> bool:
        return self.choice == "allow" and text_at(view, "risk") in _HIGH_RISK

    def _decide(self, view: JsonObject, choice: str, words: str | None = None) -> Act | None:
        option = find_option(view, choice)
        if option is None:
            return None
        self.frozen.add(text_at(view, "actionId"))
        return Decide(view, option, words)

    def _move(self, by: int) -> None:
        names = [text_at(view, "actionId") for view in self.list_all()]
        if names:
            at = names.index(self.selected) if self.selected in names else 0
            self.selected = names[max(0, min(at + by, len(names) - 1))]

    def _fix_selection(self) -> None:
        names = [text_at(view, "actionId") for view in self.list_all()]
        if self.selected not in names:
            # the unfinished input belonged to another approval
            self.selected, self.choice, self.typed = (names[0] if names else None), None, ""
            self.is_open = False


def find_option(view: JsonObject, choice: str) -> str | None:
    """Returns the id of the option for a choice."""
    for kind in _KINDS[choice]:
        for option in objects_at(view, "options"):
            if text_at(option, "kind") == kind:
                return text_at(option, "optionId")
    return None
