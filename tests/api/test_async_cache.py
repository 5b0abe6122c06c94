"""What takes long to make is made once, and pages wait for it only for a moment."""

import asyncio

import pytest

from tunewright.api.http.async_cache import AsyncCache


class Maker:
    """Makes 1, 2, 3, ..., each when it is told to."""

    def __init__(self):
        self.made = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self):
        self.made += 1
        number = self.made
        await self.go.wait()
        return number


def test_a_value_is_made_once_for_all_who_ask():
    async def look():
        make = Maker()
        kept: AsyncCache[int] = AsyncCache(4)
        make.go.clear()
        asking = [asyncio.create_task(kept.get("a", make)) for _ in range(10)]
        await asyncio.sleep(0)
        make.go.set()
        assert await asyncio.gather(*asking) == [1] * 10
        assert await kept.get("a", make) == 1
        assert await kept.get("b", make) == 2

    asyncio.run(look())


def test_who_has_no_patience_gets_it_later():
    async def look():
        make = Maker()
        kept: AsyncCache[int] = AsyncCache(4)
        make.go.clear()
        assert await kept.get("a", make, patience_s=0) is None
        assert await kept.get("a", make, patience_s=0.001) is None
        make.go.set()
        assert await kept.get("a", make, patience_s=5) == 1
        assert make.made == 1

    asyncio.run(look())


def test_what_changed_is_made_anew_and_the_old_shown_meanwhile():
    async def look():
        now_s = [0.0]
        make = Maker()
        kept: AsyncCache[int] = AsyncCache(4, 10.0, lambda: now_s[0])
        assert await kept.get("a", make, mark=1) == 1
        assert await kept.get("a", make, mark=2) == 1  # too soon
        now_s[0] = 11.0
        assert await kept.get("a", make, mark=1) == 1
        make.go.clear()
        assert await kept.get("a", make, mark=2, patience_s=0) == 1
        make.go.set()
        assert await kept.get("a", make, mark=2) == 2

    asyncio.run(look())


def test_what_could_not_be_made_is_not_kept():
    async def look():
        make, may_end = Maker(), asyncio.Event()
        kept: AsyncCache[int] = AsyncCache(4)

        async def fail():
            await may_end.wait()
            raise ValueError("no")

        may_end.set()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await kept.get("a", fail)
        may_end.clear()
        assert await kept.get("a", fail, patience_s=0) is None
        may_end.set()
        for _ in range(10):  # rounds of the loop in which it fails, and nobody hears of it
            await asyncio.sleep(0)
        assert await kept.get("a", make) == 1

    asyncio.run(look())


def test_few_are_kept():
    async def look():
        make = Maker()
        kept: AsyncCache[int] = AsyncCache(2)
        assert [await kept.get(key, make) for key in "abab"] == [1, 2, 1, 2]
        assert await kept.get("c", make) == 3
        assert await kept.get("b", make) == 2
        assert await kept.get("a", make) == 4

    asyncio.run(look())


def test_nothing_is_made_behind_the_end():
    async def look():
        make = Maker()
        kept: AsyncCache[int] = AsyncCache(2)
        make.go.clear()
        assert await kept.get("a", make, patience_s=0) is None
        await kept.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(look())
