"""Quotas and budgets of callers, and what calls of agents cost (EXT-7).

A call is charged before anything is stored or sent. What is said about it rides on the turn that it opens; a call
that is refused opens none, so the refusal stands in the caller's home session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import Limited
from passerelle.core.payloads.limit import Limited as Bound
from passerelle.core.payloads.limit import QuotaBlocked, QuotaLow
from passerelle.core.wire.times import format_ms
from passerelle.runtime.limits.account import Account
from passerelle.runtime.limits.gate import find_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from passerelle.core.payloads.limit import CostEstimated, CostRecorded, LimitPayload
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.runtime.limits.account import Allowance, Quota
    from passerelle.runtime.limits.limiter import Limiter
    from passerelle.runtime.limits.prices import Price

_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Charge:
    """What a call was charged, and what is to be said about it on its turn."""

    facts: tuple[LimitPayload, ...] = ()
    account: Account | None = None
    asks: tuple[tuple[Allowance, int], ...] = ()

    def refund(self) -> None:
        """The call was not made after all."""
        if self.account is not None:
            self.account.give(self.asks)


FREE: Final = Charge()


class Spending:
    """Accounts of callers and prices of agents. ``tell`` is told of each call that is refused."""

    def __init__(
        self,
        limiter: Limiter,
        clock: Clock,
        quotas: Mapping[str, Sequence[Quota]],
        prices: Mapping[str, Price],
        tell: Callable[[Principal, str, QuotaBlocked], None],
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._tell = tell
        self._accounts: dict[str, Account] = {}
        self.is_on = False
        """Whether anybody has a quota, or any agent a price."""
        self.reload(quotas, prices)

    def reload(self, quotas: Mapping[str, Sequence[Quota]], prices: Mapping[str, Price]) -> None:
        """Other quotas and prices from the next call on; what was used stays used."""
        self._quotas, self._prices = dict(quotas), dict(prices)
        self.is_on = bool(self._quotas or self._prices)
        self._accounts.clear()

    def find_price(self, agent: str) -> Price | None:
        """What an agent costs; None for nothing."""
        return self._prices.get(agent)

    async def charge(self, principal: Principal, agent: str, *, opens: bool) -> Charge:
        """Charges a message to an agent; ``opens`` says that it opens a run, which has a price.

        Raises:
            Limited: a quota or a budget does not cover it; nothing was charged.
            StoreUnavailable: nobody can tell.
        """
        price = self._prices.get(agent) if opens else None
        account = self._find(principal.id, principal.key) if self._quotas else None
        if account is None:
            return Charge((price.say_estimate(agent),)) if price else FREE
        estimate = price.say_estimate(agent) if price else None
        asks = tuple(_list_asks(account, estimate))
        blocked = await account.take(asks)
        if blocked is not None:
            raise self._refuse(principal, blocked, dict(asks)[blocked])
        charge = Charge((estimate,) if estimate else (), account, asks)
        try:
            warnings = await _claim_warnings(principal, account, asks)
        except BaseException:
            charge.refund()
            raise
        return replace(charge, facts=(*charge.facts, *warnings)) if warnings else charge

    def settle(self, principal_id: str, key: str, recorded: CostRecorded) -> None:
        """Sets the budget right once it is known what a run cost."""
        account = self._find(principal_id, key) if self._quotas else None
        price = self._prices.get(recorded.peer)
        if account is None or price is None:
            return
        now_ms, more = self._clock.now_ms(), recorded.amount_micros - price.estimate()
        for allowance in account.allowances:
            if more and allowance.quota.currency == recorded.currency:
                allowance.open(now_ms)
                account.give(((allowance, -more),))

    def _find(self, principal_id: str, key: str) -> Account | None:
        account = self._accounts.get(key)
        if account is None:
            quotas = self._quotas.get(find_name(principal_id))
            if not quotas:
                return None
            account = self._limiter.open_account(f"spend:{key}", quotas)
            self._accounts[key] = account
            if len(self._accounts) > _KEPT:
                idle = next((one for one, held in self._accounts.items() if held.is_idle), None)
                self._accounts.pop(idle or "", None)
        return account

    def _refuse(self, principal: Principal, blocked: Allowance, asked: int) -> Limited:
        quota = blocked.quota
        resets_at = format_ms(blocked.till_ms)
        fact = QuotaBlocked(
            limited=Bound("caller", principal.id),
            kind=quota.kind,
            unit="micros" if quota.currency else "calls",
            limit=quota.limit,
            used=blocked.used,
            asked=asked,
            resets_at=resets_at,
        )
        self._tell(principal, quota.meter, fact)
        wait_s = max(1, -(-(blocked.till_ms - self._clock.now_ms()) // 1000))
        what = "budget" if quota.currency else "quota"
        return Limited(quota.kind, f"the {what} of this {quota.period} is used up", wait_s)


async def _claim_warnings(
    principal: Principal, account: Account, asks: Sequence[tuple[Allowance, int]]
) -> list[QuotaLow]:
    return [
        _warn(principal, allowance)
        for allowance, _ in asks
        if allowance.is_low and await account.claim_warning(allowance)
    ]


def _list_asks(account: Account, estimate: CostEstimated | None) -> list[tuple[Allowance, int]]:
    asks: list[tuple[Allowance, int]] = []
    for allowance in account.allowances:
        currency = allowance.quota.currency
        if currency is None:
            asks.append((allowance, 1))
        elif estimate is not None and estimate.currency == currency:
            asks.append((allowance, estimate.amount_micros))
    return asks


def _warn(principal: Principal, allowance: Allowance) -> QuotaLow:
    quota = allowance.quota
    return QuotaLow(
        limited=Bound("caller", principal.id),
        kind=quota.kind,
        unit="micros" if quota.currency else "calls",
        limit=quota.limit,
        used=allowance.used,
        threshold_percent=quota.warn_percent,
    )
