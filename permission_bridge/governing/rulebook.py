"""The policy in force at this instance: the configured rules and those edited at runtime.

``RuleFollowing`` keeps the edited rules up to date.
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
    """The policy is composed when a part changes, so reading it costs nothing."""

    def __init__(self, configured: Policy = DEFAULT_POLICY) -> None:
        self._configured = configured
        self._edited: EditedRules | None = None
        self._fault: str | None = None
        self._policy = configured

    def find_rules(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def fault(self) -> str | None:
        """Why the edited rules cannot be parsed and everything is denied; None if they can."""
        return self._fault

    @property
    def skipped(self) -> tuple[str, ...]:
        """Stored edited rules that are ignored because they allow without a condition."""
        return () if self._edited is None else name_skipped(self._edited.rules)

    @property
    def warning(self) -> str | None:
        """What an operator has to fix in the edited rules; None if nothing."""
        if self._fault is not None:
            return f"the edited rules cannot be read: {self._fault}"
        if self.skipped:
            return f"edited rules are skipped, {UNCONDITIONAL}: {', '.join(self.skipped)}"
        return None

    @property
    def revision(self) -> int:
        """The revision of the edited rules in use."""
        return UNEDITED if self._edited is None else self._edited.revision

    def configure(self, policy: Policy) -> None:
        """Takes the policy of a changed configuration."""
        self._configured = policy
        self._compose()

    def take(self, edited: EditedRules | None) -> None:
        """Takes the edited rules as stored."""
        if self._fault is None and edited == self._edited:
            return
        self._edited, self._fault = edited, None
        self._compose()

    def distrust(self, why: str) -> None:
        """The stored edited rules cannot be parsed."""
        self._fault = why
        self._compose()

    def preview(self, stated: Sequence[StatedRule]) -> Policy:
        """The policy with these rules in place of the edited ones.

        Raises:
            InvalidInput: an invalid rule; the field is named.
        """
        return lay(self._configured, read_rules(stated))

    def _compose(self) -> None:
        stated = self._edited.rules if self._edited is not None else ()
        try:
            self._policy = lay(self._configured, read_stored(stated))
        except InvalidInput as wrong:
            # They were valid when stored: another version of the gateway knows fields that this one does not.
            self._fault = self._fault or wrong.message
        if self._fault is not None:
            why = f"the edited rules cannot be read: {self._fault}"
            self._policy = distrust(self._configured, why)


class RuleFollowing:
    """Reads the rules of ``editing`` periodically. While the store is unavailable the previous rules stay in force."""

    def __init__(
        self,
        editing: PolicyEditing,
        log: FilteringBoundLogger,
        count_skipped: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._editing = editing
        self._count_skipped = count_skipped
        self._log = log
        self._logged_fault: str | None = None
        self._skipped: tuple[str, ...] = ()

    def follow(self) -> AbstractAsyncContextManager[None]:
        """Applies the rules before it returns, and follows them until the block ends.

        Raises:
            StoreUnavailable: they could not be read; the instance does not start without them.
        """
        news = self._editing.news
        listen = partial(news.listen, HOME)
        return HintFollower("rules", self._read, listen, self._log).follow()

    async def _read(self) -> None:
        await self._editing.refresh()
        self._log_skipped(self._editing.rulebook.skipped)
        fault = self._editing.rulebook.fault
        if fault == self._logged_fault:
            return
        self._logged_fault = fault
        if fault is None:
            self._log.info("rules.valid")
        else:
            self._log.error("rules.invalid", fault=fault, effect="everything is denied")

    def _log_skipped(self, skipped: tuple[str, ...]) -> None:
        if skipped != self._skipped:
            self._skipped = skipped
            self._count_skipped(len(skipped))
            self._log.warning("rules.skipped", rules=skipped, reason=UNCONDITIONAL)
