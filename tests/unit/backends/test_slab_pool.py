"""Shared memory is bounded, and goes to those that wait in the order in which they came."""

from __future__ import annotations

import asyncio
import random

from backends.llama_vllm.slab_pool import Share, SlabPool


def granted(*shares: Share) -> list[bool]:
    return [share.granted.is_set() for share in shares]


def test_who_came_first_gets_it_first_also_if_a_later_one_would_fit() -> None:
    pool = SlabPool(10)
    first, large, small = pool.ask(6), pool.ask(5), pool.ask(1)
    assert granted(first, large, small) == [True, False, False]
    assert (pool.used, pool.waiting) == (6, 2)
    first.give_back()
    assert granted(large, small) == [True, True]
    assert (pool.used, pool.waiting) == (6, 0)


def test_who_leaves_the_line_makes_room_for_the_next_and_is_woken() -> None:
    async def test() -> None:
        pool = SlabPool(10)
        first, large, small = pool.ask(6), pool.ask(5), pool.ask(4)
        waiting = asyncio.create_task(large.granted.wait())
        await asyncio.sleep(0)
        large.give_back()
        await asyncio.wait_for(waiting, 1)
        assert granted(small) == [True]
        for share in (first, large, small, first, small):
            share.give_back()
        assert (pool.used, pool.waiting) == (0, 0)

    asyncio.run(test())


def test_the_bound_holds_whatever_comes_and_goes() -> None:
    pool, alive, order = SlabPool(100), [], random.Random(0)
    for _ in range(2000):
        if alive and order.random() < 0.5:
            alive.pop(order.randrange(len(alive))).give_back()
        else:
            alive.append(pool.ask(order.randint(0, 100)))
        holders = [share for share in alive if share.granted.is_set()]
        assert pool.used == sum(share.size for share in holders) <= 100
        assert pool.waiting == len(alive) - len(holders)
        waiting = [share for share in alive if not share.granted.is_set()]
        assert not waiting or pool.used + waiting[0].size > 100, "the first in line would fit"
    for share in alive:
        share.give_back()
    assert (pool.used, pool.waiting) == (0, 0)
