"""What a run costs: thought before it, known after it. Money is whole millionths, so that sums are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from passerelle.core.payloads.limit import CostEstimated, CostRecorded

if TYPE_CHECKING:
    from passerelle.a2a_mapping.usage import Usage

_MILLION = 1_000_000
Basis: TypeAlias = Literal["per_call", "per_second", "per_token"]


@dataclass(frozen=True, slots=True)
class Price:
    """The price of an agent. ``micros`` are for one call, one second, or a million input tokens."""

    currency: str
    basis: Basis
    micros: int
    output_micros: int = 0
    """For a million output tokens."""
    expected_ms: int = 10_000
    expected_tokens: tuple[int, int] = (1_000, 1_000)
    """In and out."""

    def estimate(self) -> int:
        """What a run is thought to cost."""
        match self.basis:
            case "per_call":
                return self.micros
            case "per_second":
                return _divide(self.micros * self.expected_ms, 1000)
            case "per_token":
                return self._count(*self.expected_tokens)

    def say_estimate(self, peer: str) -> CostEstimated:
        """The estimate as a fact (EXT-7)."""
        return CostEstimated(peer, self.estimate(), self.currency, self.basis)

    def record(self, peer: str, duration_ms: int, usage: Usage | None) -> CostRecorded:
        """What a run cost, from the peer's own usage or from time and price (EXT-7).

        A peer that is paid by token and reports none costs what was thought.
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
    """Rounded up: a part of a millionth counts as one."""
    return -(-amount // by)
