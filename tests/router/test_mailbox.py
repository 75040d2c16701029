from __future__ import annotations

import asyncio

from trnrt_router.mailbox import Mailbox
from trnrt_router.protocol import TokenDelta


def delta(number: int) -> TokenDelta:
    return TokenDelta(request_id=str(number))


def test_reader_is_woken_by_the_first_delta():
    async def scenario():
        box = Mailbox()
        reading = asyncio.ensure_future(box.take(60.0))
        await asyncio.sleep(0)
        box.put(delta(1))
        return await reading

    assert asyncio.run(scenario()) == [delta(1)]


def test_slow_reader_finds_all_that_arrived_in_order():
    async def scenario():
        box = Mailbox()
        for number in range(5):
            box.put(delta(number))
        return await box.take(0.0), await box.take(0.0)

    assert asyncio.run(scenario()) == ([delta(n) for n in range(5)], [])


def test_nothing_in_time_is_an_empty_answer_and_loses_nothing():
    async def scenario():
        box = Mailbox()
        nothing = await box.take(0.001)
        box.put(delta(1))
        return nothing, await box.take(0.0)

    assert asyncio.run(scenario()) == ([], [delta(1)])


def test_cancelled_reader_leaves_the_box_usable():
    async def scenario():
        box = Mailbox()
        reading = asyncio.ensure_future(box.take(60.0))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        box.put(delta(1))
        return await box.take(0.0)

    assert asyncio.run(scenario()) == [delta(1)]
