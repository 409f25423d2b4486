"""The options of an approval request: the agent's options that can be offered safely, and always one that rejects."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.payloads.approval import (
    ActionKind,
    GrantOffer,
    GrantScope,
    Option,
    OptionKind,
)
from passerelle.core.wire.display import escape_line
from passerelle.permission_bridge.subject import Shown

OPTION_NAME_LIMIT: Final = 40
OPTION_LIMIT: Final = 6
ANSWER: Final = Option("answer", "Reply", "answer")
CANCEL: Final = Option("cancel", "Cancel the task", "cancel")
WORDS: Final[frozenset[ActionKind]] = frozenset({"input", "auth"})

_OPTION_ID: Final = re.compile(r"[\x21-\x7e]{1,64}")
_ONCE: Final[frozenset[OptionKind]] = frozenset({"allow_once", "reject_once", "answer", "cancel"})
_CONSENTING: Final[frozenset[OptionKind]] = frozenset({"allow_once", "allow_always"})


def choose_options(prompt: PeerPrompt, shown: Shown, *, answerable: bool) -> tuple[Option, ...]:
    """The agent's options that can be offered safely, and always one that rejects or cancels."""
    wants_words = prompt.kind in WORDS
    offered: dict[str, Option] = {}
    for option in prompt.options:
        fits = option.kind in _ONCE and _OPTION_ID.fullmatch(option.option_id) is not None
        consents = option.kind in _CONSENTING and (shown.doubts or wants_words)
        words = option.kind == "answer" and not (wants_words and answerable)
        if fits and not consents and not words:
            name = escape_line(option.name)[:OPTION_NAME_LIMIT] or option.option_id
            offered.setdefault(option.option_id, replace(option, name=name))
    if len(offered) > OPTION_LIMIT:
        # A truncated list of options would mislead: only the rejecting option remains.
        offered.clear()
    kinds = {option.kind for option in offered.values()}
    # A request for authorization without an answer option must not collect a secret as an answer.
    if prompt.kind == "input" and answerable and "answer" not in kinds:
        offered.setdefault(ANSWER.option_id, ANSWER)
    if not kinds & {"reject_once", "cancel"}:
        offered[CANCEL.option_id] = CANCEL
    return tuple(offered.values())


ALWAYS: Final = "always"
_PLACES: Final[dict[GrantScope, str]] = {
    "task": "in this task",
    "thread": "in this conversation",
    "session": "in this session",
    "peer": "for this agent",
    "owner": "for every agent",
}


def add_always(options: tuple[Option, ...], offer: GrantOffer | None) -> tuple[Option, ...]:
    """The same options plus "always", if a grant is offered; the agent receives the id of the single approval."""
    yes = next((option for option in options if option.kind == "allow_once"), None)
    if offer is None or yes is None or any(option.option_id == ALWAYS for option in options):
        return options
    always = Option(ALWAYS, f"Always {_PLACES[offer.scope]}", "allow_always", offer, yes.option_id)
    return (*options, always)
