from __future__ import annotations

import asyncio

import pytest

from trnrt_router.disconnect import ClientGone, until_disconnect


async def stays() -> dict[str, str]:
    await asyncio.sleep(60)
    return {"type": "http.disconnect"}


async def leaves() -> dict[str, str]:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


def test_result_and_error_pass_through():
    async def give(value):
        return value

    async def fail():
        raise ValueError("no")

    assert asyncio.run(until_disconnect(stays, give(5))) == 5
    with pytest.raises(ValueError, match="no"):
        asyncio.run(until_disconnect(stays, fail()))


def test_client_that_leaves_cancels_the_work_and_waits_for_its_clean_up():
    cleaned = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    with pytest.raises(ClientGone):
        asyncio.run(until_disconnect(leaves, work()))
    assert cleaned == [1]


def test_cancelled_handler_cancels_the_work_and_is_cancelled_itself():
    cleaned = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(1)

    async def scenario():
        handler = asyncio.ensure_future(until_disconnect(stays, work()))
        await asyncio.sleep(0.01)
        handler.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handler

    asyncio.run(scenario())
    assert cleaned == [1]
