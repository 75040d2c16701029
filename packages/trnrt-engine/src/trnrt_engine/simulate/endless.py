"""What a cache would hit that never evicts and can be hit at every position of the grid."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from trnrt_engine.simulate.trace import BLOCK_TOKENS, TraceRequest


class EndlessCache:
    """Every prefix of whole blocks that was ever computed."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def hit_tokens(self, request: TraceRequest) -> int:
        """Return the longest known prefix that leaves a token to compute."""
        most = (request.num_prompt_tokens - 1) // BLOCK_TOKENS
        count = 0
        for prefix in prefixes_of(request):
            if count >= most or prefix not in self._known:
                break
            count += 1
        return count * BLOCK_TOKENS

    def add(self, request: TraceRequest) -> None:
        """Take in a prompt that has been computed."""
        self._known.update(prefixes_of(request))


def prefixes_of(request: TraceRequest) -> Iterator[int]:
    """Yield a number for each prefix of whole blocks, the shortest first."""
    prefix = hash(request.salt)
    whole = request.num_prompt_tokens // BLOCK_TOKENS
    if request.block_ids:
        for block_id in request.block_ids[:whole]:
            prefix = hash((prefix, block_id))
            yield prefix
        return
    view = memoryview(request.prompt(2**32)).cast("B")
    for index in range(whole):
        block = view[4 * BLOCK_TOKENS * index : 4 * BLOCK_TOKENS * (index + 1)]
        prefix = hash((prefix, blake2b(block, digest_size=16).digest()))
        yield prefix
