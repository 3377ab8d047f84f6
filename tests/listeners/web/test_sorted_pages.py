"""Pages of sorted lists, made in slices, are what sorting everything at once would give."""

from __future__ import annotations

import random

import pytest

from fanlog.listeners.web.sorted_pages import page_of
from tests.listeners.web.conftest import Serving

ITEMS = random.Random(7).sample(range(10_000), 3_000)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("offset", "limit"),
    [(0, 10), (0, 3_000), (10, 1), (1_495, 10), (1_500, 700), (2_990, 50), (3_000, 5), (9_999, 1)],
)
async def test_a_page_is_the_one_of_the_sorted_list(
    serving: Serving, offset: int, limit: int, *, descending: bool
) -> None:
    expected = sorted(ITEMS, reverse=descending)[offset : offset + limit]
    async with serving() as site:
        slices = site.listener.core.slices
        found = await page_of(
            slices, ITEMS, lambda n: n, offset=offset, limit=limit, descending=descending
        )
        assert found == expected
        assert await page_of(slices, [], lambda n: n, offset=0, limit=5) == []
