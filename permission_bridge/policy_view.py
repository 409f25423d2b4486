"""The view of the policy in force, with the rules as they were written, for the callers they apply to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.policy.edited_rules import UNEDITED
from passerelle.core.policy.requests import (
    ApproversView,
    EditedRulesView,
    PolicyView,
    RuleView,
)
from passerelle.permission_bridge.edited_rules import name_skipped

if TYPE_CHECKING:
    from passerelle.core.policy.edited_rules import EditedRules
    from passerelle.permission_bridge.approvers import Tier
    from passerelle.permission_bridge.rules import Policy, Rule


def show_policy(
    policy: Policy, caller: str, edited: EditedRules | None = None, *, may_edit: bool = False
) -> PolicyView:
    """The policy without the rules about other callers; the addresses of hooks are left out.

    A caller that ``may_edit`` sees all edited rules.
    """
    return PolicyView(
        version=policy.version,
        mode=policy.mode,
        rules=tuple(_show_rule(rule) for rule in policy.rules if rule.owner in {None, caller}),
        approvers=tuple(_show_tier(tier) for tier in policy.tiers),
        hooks=tuple(hook.name for hook in policy.hooks),
        classifies=policy.classifier is not None,
        grant_scope=policy.grants.scope,
        unsound=policy.unsound,
        skipped=name_skipped(edited.rules) if may_edit and edited is not None else (),
        rev=UNEDITED if edited is None else edited.revision,
        edited=_show_edited(edited) if may_edit else None,
    )


def _show_edited(edited: EditedRules | None) -> EditedRulesView:
    if edited is None:
        return EditedRulesView()
    return EditedRulesView(edited.rules, edited.edited_by, edited.updated_at)


def _show_rule(rule: Rule) -> RuleView:
    return RuleView(
        name=rule.name,
        effect=rule.effect,
        about=tuple(sorted(rule.about)),
        when=rule.condition.text if rule.condition else None,
        argv=rule.argv,
        grantable=rule.grantable,
        reason=rule.reason,
        owner=rule.owner,
        approvers=_show_tier(rule.tier) if rule.tier else None,
        origin="edited" if rule.edited else "configuration",
    )


def _show_tier(tier: Tier) -> ApproversView:
    quorum = tier.quorum
    return ApproversView(tier.risk, quorum.need, quorum.veto, quorum.allow_self, tier.steps)
