"""What the configuration says of agents beside where they are."""

from __future__ import annotations

from passerelle.gateway.agent_terms import AgentTerms
from passerelle.gateway.delegation.patience import Patience
from passerelle.gateway.settings import Settings


def test_patience_with_an_agent_is_what_its_timeouts_say() -> None:
    agent = {"name": "slow", "url": "https://agents.example.com"}
    timeout = {"arrival": "90s", "liveness": "10m"}
    terms = AgentTerms(Settings.model_validate({"agents": [{**agent, "timeout": timeout}]}))
    adapted = terms.adapt("slow", Patience(poll_s=7.0))
    assert adapted == Patience(poll_s=7.0, doubt_s=90.0, liveness_s=600.0)


def test_patience_with_an_agent_that_is_gone_is_the_common_one() -> None:
    assert AgentTerms(Settings()).adapt("gone", Patience()) == Patience()


def test_timeouts_that_nobody_sets_are_those_of_the_patience() -> None:
    terms = AgentTerms(
        Settings.model_validate({"agents": [{"name": "a", "url": "https://a.example.com"}]})
    )
    assert terms.adapt("a", Patience()) == Patience()
