"""Fair shares of tenants, by the tokens computed for them.

Every tenant with work has a counter of tokens computed; who has the lowest is served next. Tokens
from the prefix cache are not computed and do not count. A tenant alone gets everything. One that
comes back from idleness is lifted to the lowest counter among those with work: nobody saves up a
right to the machine; a debt from before is kept as long as others work.

An admitted prompt is promised: its tokens are computed later, and count at once where the next one
to be admitted is chosen, or one tenant would get every free place before its counter moved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_IDLE_TENANTS = 4096


class FairShare:
    """Counters of tenants, and which of them have work."""

    def __init__(self) -> None:
        self._num_requests: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._charged: dict[str, int] = {}
        self._idle: OrderedDict[str, int] = OrderedDict()

    def enter(self, tenant: str) -> None:
        """Take in one more request of a tenant."""
        if tenant not in self._num_requests:
            lowest = min(self._computed.values(), default=0)
            counter = max(self._idle.pop(tenant, 0), lowest)
            self._computed[tenant] = self._charged[tenant] = counter
            self._num_requests[tenant] = 0
        self._num_requests[tenant] += 1

    def leave(self, tenant: str) -> None:
        """Let a request go; when no tenant has work the past is forgotten."""
        self._num_requests[tenant] -= 1
        if self._num_requests[tenant]:
            return
        del self._num_requests[tenant], self._charged[tenant]
        self._idle[tenant] = self._computed.pop(tenant)
        if not self._num_requests:
            self._idle.clear()
        elif len(self._idle) > MAX_IDLE_TENANTS:
            self._idle.popitem(last=False)

    def promise(self, tenant: str, num_tokens: int) -> None:
        """Charge tokens that will be computed; negative ones take back what will not be."""
        self._charged[tenant] += num_tokens

    def count(self, tenant: str, num_tokens: int, *, is_promised: bool) -> None:
        """Charge tokens that are computed now."""
        self._computed[tenant] += num_tokens
        if not is_promised:
            self._charged[tenant] += num_tokens

    def computed(self, tenant: str) -> int:
        """Return a tenant's counter."""
        return self._computed[tenant]

    def charged(self, tenant: str) -> int:
        """Return a tenant's counter with what is promised to it."""
        return self._charged[tenant]

    def least_charged(self, tenants: Iterable[str]) -> str:
        """Return whose turn it is to be admitted; of equals, the first."""
        return min(tenants, key=self._charged.__getitem__)

    def promised(self) -> dict[str, int]:
        """Return what is promised to each tenant with work."""
        return {name: self._charged[name] - self._computed[name] for name in self._num_requests}
