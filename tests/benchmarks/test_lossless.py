"""Outputs are compared until every legal value went by, and a refused table is an error."""

import asyncio
import json

import httpx
import pytest

from testing.lossless import compare

LEGAL = [0, 1, 2]


async def against(tables, *, refuse_from=None, wrong_from=None):
    """A server that answers at once; ``tables`` collects what it was asked for."""

    async def answer(request):
        await asyncio.sleep(0.001)
        if request.url.path == "/specctl/v1/capabilities":
            return httpx.Response(200, json={"num_speculative_tokens_legal": LEGAL})
        if request.url.path == "/v1/completions":
            wrong = wrong_from is not None and len(tables) >= wrong_from
            return httpx.Response(200, json={"choices": [{"token_ids": [9 if wrong else 7]}]})
        if request.method == "GET":
            return httpx.Response(200, json={"version": len(tables)})
        if refuse_from is not None and len(tables) >= refuse_from:
            return httpx.Response(409, json={"error": "version"})
        tables.append(json.loads(request.content)["rows"][0]["num_speculative_tokens"])
        return httpx.Response(200, json={})

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
        return await compare(
            client, "model", ["a", "b"], [[7], [7]], max_tokens=1, concurrency=2, every_s=0.02
        )


def test_a_quick_server_still_sees_every_value():
    tables = []
    result = asyncio.run(against(tables))
    assert set(tables) == set(LEGAL)
    assert result.tables > len(LEGAL)
    assert result.differing == ()


def test_a_difference_in_a_later_round_counts():
    assert asyncio.run(against([], wrong_from=2)).differing == (0, 1)


def test_a_refused_table_ends_it():
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        asyncio.run(against([], refuse_from=1))
