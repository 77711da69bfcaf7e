"""The settings of a subscription that control delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

DAY = 86_400.0  # seconds


@dataclass(frozen=True)
class Settings:
    """Times are in seconds."""

    ack_deadline: float = 10
    retention: float = 7 * DAY
    retain_acked: bool = False
    ordering: bool = False
    exactly_once: bool = False
    dead_letter_topic: str = ""
    dead_letter_attempts: int = 0
    min_backoff: float = 0
    max_backoff: float = 0
    ttl: float = 31 * DAY
    matches: Callable[[Mapping[str, str]], bool] | None = None

    def backoff(self, failures: int) -> float:
        """Return the backoff of a message: exponential between the policy's bounds, which also cap the exponent."""
        return min(self.max_backoff, self.min_backoff * 2.0 ** min(failures - 1, 64))
