"""Consults the other policy sources about an agent's request: grants, hooks and the classifier.

``evaluate`` is pure and runs inside an append, so it cannot wait. When an append meets a prompt that was not yet
consulted about, it stops with ``ConsultationRequired``, the sources are asked, and the same frames are decided again. A
grant is used before the evaluation that relies on it is recorded, so a crash can lose a use and never use it twice. The
evaluation sees only the grant that was used; if the rules changed in between, that grant may have no effect.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.core.errors import NotFound, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.permission_bridge.cases import describe_case
from passerelle.permission_bridge.grants import find_where
from passerelle.permission_bridge.hooks.hooks import NO_HOOK_RESULTS
from passerelle.permission_bridge.policy import PolicyFacts, SourceVerdict, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.approval.prompt import PeerPrompt
    from passerelle.core.facts import Scope
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.permission_bridge.answers.grants import GrantService
    from passerelle.permission_bridge.cases import PeerAsks
    from passerelle.permission_bridge.hooks.hooks import Hooks
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.blob_overflow import Note


def asks_others(rules: Policy) -> bool:
    """Whether a hook or the classifier may influence decisions on agent requests."""
    return bool(rules.hooks or rules.classifier)


class ConsultationRequired(Exception):
    """These prompts, with their cases, are new: no source was consulted about them."""

    def __init__(self, prompts: Sequence[tuple[PeerPrompt, PeerAsks]]) -> None:
        super().__init__(f"{len(prompts)} prompts")
        self.prompts = tuple(prompts)


@frozen
class Consulted:
    """The results of a consultation about one case, and its facts, which are stored with the evaluation."""

    facts: PolicyFacts
    notes: tuple[Note, ...]


@frozen
class PolicyConsultation:
    """Consults grants, hooks and the classifier."""

    granting: GrantService
    hooks: Hooks
    find_rules: Callable[[], Policy]
    clock: Clock

    async def consult(
        self, case: PeerAsks, owner: Principal, scope: Scope, mint: Callable[[str], str]
    ) -> Consulted:
        """Collects the facts that ``evaluate`` needs for a case, and uses the grant that decides it.

        Raises:
            StoreUnavailable: the grants could not be read.
        """
        grants = await self.granting.read(owner) if case.is_allowable else None
        evaluation_id, rules, results = mint("eval"), self.find_rules(), NO_HOOK_RESULTS
        classified: tuple[SourceVerdict, ...] = ()
        if asks_others(rules):
            given = describe_case(case, scope, evaluation_id, self.clock.now_ms())
            results = await self.hooks.evaluate("on_permission_request", rules, given)
            classified = await self.hooks.classify(rules, given)
        facts = PolicyFacts(
            evaluation_id,
            opinions=(*results.verdicts, *classified),
            grants=grants.grants if grants else (),
            where=find_where(scope),
            bypass=grants.bypasses(self.clock.now_ms()) if grants else False,
        )
        return Consulted(await self._use(case, owner, facts), results.notes)

    async def _use(self, case: PeerAsks, owner: Principal, facts: PolicyFacts) -> PolicyFacts:
        """The facts with the one grant that was used, or with none."""
        while facts.grants:
            found = evaluate(case, facts, self.clock.now_ms(), self.find_rules())
            used = [one for one in facts.grants if one.grant_id == found.grant_id]
            if not used:
                break
            try:
                await self.granting.use(owner, used[0].grant_id, facts.evaluation_id)
            except (NotFound, UnsupportedOperation):
                # The grant was revoked, or another request used it up, since it was read.
                rest = tuple(one for one in facts.grants if one is not used[0])
                facts = replace(facts, grants=rest)
                continue
            return replace(facts, grants=(used[0],))
        return replace(facts, grants=())
