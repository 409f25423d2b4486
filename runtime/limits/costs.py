"""The prices of calls to agents, and the quotas and budgets of callers that they are charged to (EXT-7).

The cost of a run is estimated before it and known after it. Money is whole millionths, so that sums are exact. A call
is charged before anything is stored or sent. The facts about a charge are written with the turn that it opens; a
refused call opens no turn, so its refusal is recorded in the caller's home session. With a quota that is waited for,
the call is accepted without a charge, and charged before it is sent, once the quota has reset.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import Limited
from passerelle.core.frozen import frozen
from passerelle.core.payloads.limit import (
    CostEstimated,
    CostRecorded,
    LimitSubject,
    QuotaBlocked,
    QuotaLow,
)
from passerelle.core.wire.times import format_ms
from passerelle.runtime.limits.account import Account
from passerelle.runtime.limits.gate import find_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from passerelle.a2a_mapping.answer_metadata import Usage
    from passerelle.core.payloads.limit import LimitPayload
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.runtime.limits.account import Allowance, PeriodName, Quota
    from passerelle.runtime.limits.limiter import Limiter

_MILLION = 1_000_000
Basis: TypeAlias = Literal["per_call", "per_second", "per_token"]


@frozen
class Price:
    """The price of an agent. ``micros`` are for one call, one second, or a million input tokens."""

    currency: str
    basis: Basis
    micros: int
    output_micros: int = 0
    """For a million output tokens."""
    expected_ms: int = 10_000
    expected_tokens: tuple[int, int] = (1_000, 1_000)
    """Input and output tokens."""

    @property
    def is_flat(self) -> bool:
        """Whether a run costs exactly its estimate, whatever its duration."""
        return self.basis == "per_call"

    def estimate(self) -> int:
        """The estimated cost of a run."""
        match self.basis:
            case "per_call":
                return self.micros
            case "per_second":
                return _divide(self.micros * self.expected_ms, 1000)
            case "per_token":
                return self._count(*self.expected_tokens)

    def make_estimate(self, peer: str) -> CostEstimated:
        """The estimate as a fact (EXT-7)."""
        return CostEstimated(peer, self.estimate(), self.currency, self.basis)

    def record(self, peer: str, duration_ms: int, usage: Usage | None) -> CostRecorded:
        """The cost of a run, from the peer's usage report or from time and price (EXT-7).

        A peer that is paid by token and reports no usage costs the estimate.
        """
        known = usage is not None and self.basis == "per_token"
        if self.basis == "per_second":
            amount, source = _divide(self.micros * duration_ms, 1000), "wall_time"
        elif usage is not None and known:
            amount, source = self._count(usage.input_tokens, usage.output_tokens), "peer_usage"
        else:
            amount, source = self.estimate(), "per_call"
        return CostRecorded(
            peer=peer,
            amount_micros=amount,
            currency=self.currency,
            source=source,  # type: ignore[arg-type]  # one of the three words above
            duration_ms=duration_ms,
            input_tokens=usage.input_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
        )

    def _count(self, read: int, written: int) -> int:
        return _divide(self.micros * read + self.output_micros * written, _MILLION)


def _divide(amount: int, by: int) -> int:
    """Division rounded up: a fraction of a millionth counts as one."""
    return -(-amount // by)


_KEPT: Final = 10_000


@frozen
class RunBill:
    """What a run that is over is charged: ``amount_micros``, 0 if the agent never took the work."""

    peer: str
    currency: str
    amount_micros: int
    is_prepaid: bool
    """Whether the estimate was charged before the run. It was not for an attempt that the gateway made by itself."""


@frozen
class Charge:
    """The charge of a call, and the facts to record on its turn."""

    facts: tuple[LimitPayload, ...] = ()
    account: Account | None = None
    asks: tuple[tuple[Allowance, int], ...] = ()

    def refund(self) -> None:
        """Refunds the charge of a call that was not made."""
        if self.account is not None:
            self.account.give(self.asks)


FREE: Final = Charge()
_NAMES: Final[dict[PeriodName, str]] = {
    "minute": "a minute",
    "hour": "an hour",
    "day": "a day",
    "month": "a month",
}


@frozen
class Shortage:
    """The quota that does not cover a call; nothing was charged."""

    quota: Quota
    till_ms: int
    """When the quota resets."""
    fact: QuotaBlocked

    @property
    def is_waited_for(self) -> bool:
        """Whether the call is accepted and waits. A call above the whole quota would wait forever and is refused."""
        return self.quota.waits and self.fact.asked <= self.quota.limit

    @property
    def name(self) -> str:
        """The quota as text for people."""
        quota, per = self.quota, _NAMES[self.quota.period]
        if quota.currency is None:
            return f"the quota of {quota.limit} call{'' if quota.limit == 1 else 's'} {per}"
        amount = f"{quota.limit / _MILLION:f}".rstrip("0").rstrip(".")
        return f"the budget of {amount} {quota.currency} {per}"

    @property
    def text(self) -> str:
        """The shortage as text for people."""
        return f"{self.name} is used up"


class Spending:
    """Accounts of callers and prices of agents. ``on_refused`` is called for each refused call."""

    def __init__(
        self,
        limiter: Limiter,
        clock: Clock,
        quotas: Mapping[str, Sequence[Quota]],
        prices: Mapping[str, Price],
        on_refused: Callable[[Principal, str, QuotaBlocked], None],
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._on_refused = on_refused
        self._accounts: dict[str, Account] = {}
        self.is_on = False
        """Whether any caller has a quota, or any agent a price."""
        self.reload(quotas, prices)

    def reload(self, quotas: Mapping[str, Sequence[Quota]], prices: Mapping[str, Price]) -> None:
        """Replaces quotas and prices from the next call on; usage so far is kept."""
        self._quotas, self._prices = dict(quotas), dict(prices)
        self.is_on = bool(self._quotas or self._prices)
        self._accounts.clear()

    @property
    def has_quotas(self) -> bool:
        """Whether any caller has a quota or a budget."""
        return bool(self._quotas)

    def find_price(self, agent: str) -> Price | None:
        """The price of an agent; None if it is free."""
        return self._prices.get(agent)

    def covers(self, principal: Principal, agent: str) -> bool:
        """Whether a run at an agent would be covered, as far as known here: no store call, no charge."""
        if not self._quotas:
            return True
        account = self._find(principal.id, principal.key)
        if account is None:
            return True
        price = self._prices.get(agent)
        asks = _list_asks(account, price.make_estimate(agent) if price else None)
        return account.may_cover(asks)

    async def charge(self, principal: Principal, agent: str, *, opens: bool) -> Charge:
        """Charges a message to an agent; ``opens``: it opens a run, which has a price.

        Raises:
            Limited: a quota or a budget does not cover it; nothing was charged.
            StoreUnavailable: the quota cannot be checked.
        """
        charged = await self.take(principal, agent, opens=opens)
        if isinstance(charged, Shortage):
            raise self.refuse(principal, charged)
        return charged

    async def take(self, principal: Principal, agent: str, *, opens: bool) -> Charge | Shortage:
        """The same, but returns a shortage as a value, without recording it.

        Raises:
            StoreUnavailable: the quota cannot be checked.
        """
        price = self._prices.get(agent) if opens else None
        account = self._find(principal.id, principal.key) if self._quotas else None
        if account is None:
            return Charge((price.make_estimate(agent),)) if price else FREE
        estimate = price.make_estimate(agent) if price else None
        asks = tuple(_list_asks(account, estimate))
        blocked = await account.take(asks)
        if blocked is not None:
            return _describe(principal, blocked, dict(asks)[blocked])
        charge = Charge((estimate,) if estimate else (), account, asks)
        try:
            warnings = await _claim_warnings(principal, account, asks)
        except BaseException:
            charge.refund()
            raise
        return replace(charge, facts=(*charge.facts, *warnings)) if warnings else charge

    async def find_shortage(self, principal: Principal, agent: str) -> Shortage | None:
        """The quota that does not cover a run at an agent; nothing is charged.

        Raises:
            StoreUnavailable: the quota cannot be checked.
        """
        account = self._find(principal.id, principal.key) if self._quotas else None
        if account is None:
            return None
        price = self._prices.get(agent)
        asks = _list_asks(account, price.make_estimate(agent) if price else None)
        blocked = await account.take(asks)
        if blocked is not None:
            return _describe(principal, blocked, dict(asks)[blocked])
        account.give(asks)
        return None

    def settle(self, principal_id: str, key: str, bill: RunBill) -> None:
        """Corrects the budget once the cost of a run is known."""
        account = self._find(principal_id, key) if self._quotas else None
        price = self._prices.get(bill.peer)
        if account is None or price is None:
            return
        prepaid = price.estimate() if bill.is_prepaid else 0
        now_ms, more = self._clock.now_ms(), bill.amount_micros - prepaid
        for allowance in account.allowances:
            if more and allowance.quota.currency == bill.currency:
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

    def refuse(self, principal: Principal, shortage: Shortage) -> Limited:
        """Records a shortage and returns the error for the caller."""
        quota = shortage.quota
        self._on_refused(principal, quota.meter, shortage.fact)
        wait_s = max(1, -(-(shortage.till_ms - self._clock.now_ms()) // 1000))
        what = "budget" if quota.currency else "quota"
        return Limited(quota.kind, f"the {what} of this {quota.period} is used up", wait_s)


def _describe(principal: Principal, blocked: Allowance, asked: int) -> Shortage:
    quota = blocked.quota
    fact = QuotaBlocked(
        limited=LimitSubject("caller", principal.id),
        kind=quota.kind,
        unit="micros" if quota.currency else "calls",
        limit=quota.limit,
        used=blocked.used,
        asked=asked,
        resets_at=format_ms(blocked.till_ms),
    )
    return Shortage(quota, blocked.till_ms, fact)


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
        limited=LimitSubject("caller", principal.id),
        kind=quota.kind,
        unit="micros" if quota.currency else "calls",
        limit=quota.limit,
        used=allowance.used,
        threshold_percent=quota.warn_percent,
    )
