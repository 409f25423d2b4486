"""Who else has a say in what a peer asks: grants, hooks and the classifier, heard before the question is judged.

Judging is pure and happens inside an append, so it waits for nobody. Where a prompt turns up that nobody has been heard
about, the append is given up (``Unheard``), the sources are asked, and the same frames are decided again.

A grant is used before the evaluation that relies on it is recorded, so a crash can burn a use and never double one.
Only the grant that was used is shown to the evaluation; by rules that changed meanwhile it may still count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passerelle.core.errors import NotFound, UnsupportedOperation
from passerelle.permission_bridge.cases import describe_case
from passerelle.permission_bridge.grants import find_where
from passerelle.permission_bridge.hooks.hooks import UNHEARD
from passerelle.permission_bridge.policy import PolicyFacts, Said, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.approval.prompt import PeerPrompt
    from passerelle.core.facts import Scope
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.permission_bridge.answers.grants import Granting
    from passerelle.permission_bridge.cases import PeerAsks
    from passerelle.permission_bridge.hooks.hooks import Hooks
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.blob_overflow import Note


def asks_others(rules: Policy) -> bool:
    """Whether a hook or the classifier may have a say in what a peer asks."""
    return bool(rules.hooks or rules.classifier)


class ConsultationRequired(Exception):
    """These prompts are new, with their cases, and nobody has been heard about them."""

    def __init__(self, prompts: Sequence[tuple[PeerPrompt, PeerAsks]]) -> None:
        super().__init__(f"{len(prompts)} prompts")
        self.prompts = tuple(prompts)


@dataclass(frozen=True, slots=True)
class Consulted:
    """What was heard about one case, and the facts of the hearing, which are stored with the evaluation."""

    facts: PolicyFacts
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyConsultation:
    """Asks everybody who has a say."""

    granting: Granting
    hooks: Hooks
    find_rules: Callable[[], Policy]
    clock: Clock

    async def hear(
        self, case: PeerAsks, owner: Principal, scope: Scope, mint: Callable[[str], str]
    ) -> Consulted:
        """Everything that is to be known about a case before it is judged; the grant that decides is used.

        Raises:
            StoreUnavailable: the grants could not be read.
        """
        grants = await self.granting.read(owner) if case.is_allowable else None
        evaluation_id, rules, heard = mint("eval"), self.find_rules(), UNHEARD
        opinions: tuple[Said, ...] = ()
        if asks_others(rules):
            given = describe_case(case, scope, evaluation_id, self.clock.now_ms())
            heard = await self.hooks.hear("on_permission_request", rules, given)
            opinions = await self.hooks.classify(rules, given)
        facts = PolicyFacts(
            evaluation_id,
            heard=(*heard.said, *opinions),
            grants=grants.grants if grants else (),
            where=find_where(scope),
            bypass=grants.bypasses(self.clock.now_ms()) if grants else False,
        )
        return Consulted(await self._use(case, owner, facts), heard.notes)

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
                # Revoked, or used up by somebody else, since it was read.
                rest = tuple(one for one in facts.grants if one is not used[0])
                facts = replace(facts, grants=rest)
                continue
            return replace(facts, grants=(used[0],))
        return replace(facts, grants=())
