"""Pages that were made a moment ago are shown again."""

import asyncio

import pytest

from tunewright.api.dashboard import page
from tunewright.api.dashboard.page import MOST_KEPT, cached_page
from tunewright.api.http.async_cache import AsyncCache


class Maker:
    """Makes pages that differ, each when it is told to."""

    def __init__(self):
        self.made = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self):
        self.made += 1
        number = self.made
        await self.go.wait()
        return b"%d" % number


@pytest.fixture(autouse=True)
def _keep(monkeypatch):
    monkeypatch.setattr(page, "KEEP_S", 1.0)


def test_a_page_is_made_once_a_second():
    async def look():
        now = [10.0]
        pages, make = AsyncCache[bytes](MOST_KEPT, clock=lambda: now[0]), Maker()
        assert [await cached_page(pages, "/", make) for _ in range(3)] == [b"1"] * 3
        assert await cached_page(pages, "/?x", make) == b"2"
        now[0] += 0.9
        assert await cached_page(pages, "/", make) == b"1"
        assert await cached_page(pages, "/", make, anew=True) == b"3"
        now[0] += 0.9
        assert await cached_page(pages, "/", make) == b"3"
        now[0] += 0.2
        assert await cached_page(pages, "/", make) == b"4"

    asyncio.run(look())


def test_all_who_ask_meanwhile_wait_for_the_same():
    async def look():
        pages, make = AsyncCache[bytes](MOST_KEPT), Maker()
        make.go.clear()
        waiting = [asyncio.create_task(cached_page(pages, "/", make)) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        make.go.set()
        assert await asyncio.gather(*waiting[1:]) == [b"1"] * 19
        assert make.made == 1

    asyncio.run(look())


def test_who_asks_later_does_not_get_what_was_begun_before():
    async def look():
        now = [10.0]
        pages, make = AsyncCache[bytes](MOST_KEPT, clock=lambda: now[0]), Maker()
        make.go.clear()
        first = asyncio.create_task(cached_page(pages, "/", make))
        await asyncio.sleep(0)
        now[0] += 1.1
        second = asyncio.create_task(cached_page(pages, "/", make))
        await asyncio.sleep(0)
        make.go.set()
        assert [await first, await second, await cached_page(pages, "/", make)] == [b"1", b"2", b"2"]

    asyncio.run(look())


def test_what_could_not_be_made_is_not_kept():
    async def look():
        pages, make = AsyncCache[bytes](MOST_KEPT), Maker()

        async def fail():
            raise ValueError("no")

        found = await asyncio.gather(*(cached_page(pages, "/", fail) for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in found] == ["no"] * 3
        assert await cached_page(pages, "/", make) == b"1"

    asyncio.run(look())


def test_few_are_kept():
    async def look():
        pages, make = AsyncCache[bytes](MOST_KEPT), Maker()
        for number in range(MOST_KEPT + 1):
            await cached_page(pages, str(number), make)
        await cached_page(pages, str(MOST_KEPT), make)
        assert make.made == MOST_KEPT + 1
        await cached_page(pages, "0", make)
        assert make.made == MOST_KEPT + 2

    asyncio.run(look())
