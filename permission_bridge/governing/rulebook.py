"""The policy in force at this instance: what the configuration says, and what was put beside it while it runs.

``RuleFollowing`` has the edited rules count here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from passerelle.core.errors import InvalidInput
from passerelle.core.policy.edited_rules import UNEDITED
from passerelle.permission_bridge.edited_rules import (
    distrust,
    lay,
    name_skipped,
    read_rules,
    read_stored,
)
from passerelle.permission_bridge.governing.rule_edits import HOME
from passerelle.permission_bridge.rules import DEFAULT_POLICY, UNCONDITIONAL
from passerelle.runtime.common.refresh import HintFollower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.payloads.governance import StatedRule
    from passerelle.core.policy.edited_rules import EditedRules
    from passerelle.permission_bridge.governing.rule_edits import PolicyEditing
    from passerelle.permission_bridge.rules import Policy


class Rulebook:
    """Put together whenever a part changes, so that to ask for it costs nothing."""

    def __init__(self, configured: Policy = DEFAULT_POLICY) -> None:
        self._configured = configured
        self._edited: EditedRules | None = None
        self._fault: str | None = None
        self._policy = configured

    def find_rules(self) -> Policy:
        """What may happen without asking."""
        return self._policy

    @property
    def fault(self) -> str | None:
        """Why the edited rules are not in force, and nothing is allowed."""
        return self._fault

    @property
    def skipped(self) -> tuple[str, ...]:
        """Edited rules that are stored and count for nothing, since they allow without a condition."""
        return () if self._edited is None else name_skipped(self._edited.rules)

    @property
    def warning(self) -> str | None:
        """What an operator has to mend in the edited rules; None where nothing is wrong."""
        if self._fault is not None:
            return f"the edited rules cannot be read: {self._fault}"
        if self.skipped:
            return f"edited rules are skipped, {UNCONDITIONAL}: {', '.join(self.skipped)}"
        return None

    @property
    def revision(self) -> int:
        """That of the edited rules, as they were taken last."""
        return UNEDITED if self._edited is None else self._edited.revision

    def configure(self, policy: Policy) -> None:
        """What another configuration says."""
        self._configured = policy
        self._compose()

    def take(self, edited: EditedRules | None) -> None:
        """The edited rules as they are stored."""
        if self._fault is None and edited == self._edited:
            return
        self._edited, self._fault = edited, None
        self._compose()

    def distrust(self, why: str) -> None:
        """The edited rules are stored, and cannot be read."""
        self._fault = why
        self._compose()

    def preview(self, stated: Sequence[StatedRule]) -> Policy:
        """The policy as it would be with these in place of the edited ones.

        Raises:
            InvalidInput: one is not a rule; the field is named.
        """
        return lay(self._configured, read_rules(stated))

    def _compose(self) -> None:
        stated = self._edited.rules if self._edited is not None else ()
        try:
            self._policy = lay(self._configured, read_stored(stated))
        except InvalidInput as wrong:
            # They were checked when they were put: another version of the gateway knows fields that this one does not.
            self._fault = self._fault or wrong.message
        if self._fault is not None:
            why = f"the edited rules cannot be read: {self._fault}"
            self._policy = distrust(self._configured, why)


class RuleFollowing:
    """Reads the rules of ``editing`` again and again. While the store is away those of before count."""

    def __init__(
        self,
        editing: PolicyEditing,
        log: FilteringBoundLogger,
        count_skipped: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._editing = editing
        self._count_skipped = count_skipped
        self._log = log
        self._told: str | None = None
        self._skipped: tuple[str, ...] = ()

    def follow(self) -> AbstractAsyncContextManager[None]:
        """The rules count from the first moment on, and are followed until the end.

        Raises:
            StoreUnavailable: they could not be read; what is not known is not gone by.
        """
        news = self._editing.news
        listen = partial(news.listen, HOME)
        return HintFollower("rules", self._read, listen, self._log).follow()

    async def _read(self) -> None:
        await self._editing.refresh()
        self._tell_skipped(self._editing.rulebook.skipped)
        fault = self._editing.rulebook.fault
        if fault == self._told:
            return
        self._told = fault
        if fault is None:
            self._log.info("rules.sound")
        else:
            self._log.error("rules.unsound", fault=fault, effect="everything is denied")

    def _tell_skipped(self, skipped: tuple[str, ...]) -> None:
        if skipped != self._skipped:
            self._skipped = skipped
            self._count_skipped(len(skipped))
            self._log.warning("rules.skipped", rules=skipped, reason=UNCONDITIONAL)
