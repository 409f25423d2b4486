"""The configuration of agents besides their addresses."""

from __future__ import annotations

from passerelle.core.facts import RetryPolicy
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.gateway.agent_terms import AgentTerms
from passerelle.gateway.settings.model import Settings


def configure(**said: object) -> Settings:
    """A configuration with one agent."""
    agent = {"name": "a", "url": "https://a.example.com", **said}
    return Settings.model_validate({"agents": [agent]})


def test_timeouts_of_an_agent_are_those_of_its_configuration() -> None:
    terms = AgentTerms(
        configure(timeout={"arrival": "90s", "liveness": "10m", "stalled": "1m"}),
        Timeouts(poll_s=7.0),
    )
    assert terms.find("a").timeouts == Timeouts(
        poll_s=7.0, doubt_s=90.0, liveness_s=600.0, stalled_s=60.0
    )


def test_an_unknown_agent_has_default_terms() -> None:
    assert AgentTerms(Settings(), Timeouts()).find("gone") == PeerTerms()


def test_timeouts_that_are_not_set_have_the_gateways_defaults() -> None:
    assert AgentTerms(configure(), Timeouts()).find("a").timeouts == Timeouts()


def test_terms_are_one_object_until_the_configuration_changes() -> None:
    terms = AgentTerms(configure(), Timeouts())
    assert terms.find("a") is terms.find("a")
    terms.reload(configure(tags=["slow"], answers="always_task", correlation=True))
    said = terms.find("a")
    assert (said.tags, said.always_task, said.correlates) == (frozenset({"slow"}), True, True)
    assert terms.find_tags("a") == said.tags


def test_agent_that_is_gone_keeps_its_retry_policy_and_nothing_else() -> None:
    terms = AgentTerms(configure(tags=["slow"], timeout={"total": "7s"}), Timeouts())
    policy = terms.find("a").policy
    assert policy != RetryPolicy()
    terms.reload(Settings())
    assert terms.find("a") == PeerTerms(policy=policy)
    terms.reload(Settings())
    assert terms.find("a") == PeerTerms(policy=policy)


def test_settings_for_a_busy_agent_are_in_its_timeouts() -> None:
    busy = {"callers": "refuse", "told_after": "10s", "give_up": "5m"}
    terms = AgentTerms(configure(busy=busy), Timeouts())
    assert terms.find("a").timeouts == Timeouts(notify_after_s=10.0, refuses=True, busy_s=300.0)


def test_a_task_is_no_larger_than_the_memory_budget_of_the_process() -> None:
    settings = Settings.model_validate(
        {
            "agents": [{"name": "a", "url": "https://a.example.com"}],
            "memory": {"budget_bytes": 2**27},
        }
    )
    assert AgentTerms(settings, Timeouts()).find("a").limits.held_bytes == 2**27
