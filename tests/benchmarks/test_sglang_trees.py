"""Trees against chains: totals over all prompts, ratios by prompt, on a server of a few lines."""

import argparse
import asyncio
import json

import httpx

from benchmarks.sglang_trees import compared

STEPS = {1: (8, 4), 3: (4, 4)}
"""By the branches of a depth: how many steps each of two prompts takes for 8 tokens behind the first."""


async def against(tables):
    """``tables`` collects what is put; with branches the second prompt's output is another."""

    async def answer(request):
        if request.url.path != "/generate":
            if request.method == "PUT":
                tables.append(json.loads(request.content)["rows"][0])
            return httpx.Response(200, json={"version": len(tables)})
        prompt, branches = json.loads(request.content)["input_ids"][0], tables[-1]["tree_topk"]
        output = [7] * 8 + [prompt if branches > 1 else 0]
        told = {"output_ids": output, "meta_info": {"spec_verify_ct": STEPS[branches][prompt]}}
        return httpx.Response(200, json=told)

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
        arguments = argparse.Namespace(max_tokens=9)
        return await compared(client, 16, (5, 3), [[0], [1]], [[7] * 8 + [0]] * 2, arguments)


def test_a_tree_against_a_chain():
    tables = []
    row = asyncio.run(against(tables))
    knobs = ("num_speculative_tokens", "tree_topk", "verify_width_tokens")
    assert [tuple(row[knob] for knob in knobs) for row in tables] == [(15, 1, 16), (5, 3, 16)]
    assert row["chain"] == {"tokens a step": 1.3333, "outputs as without drafts": "2 of 2"}
    assert row["tree"] == {"tokens a step": 2.0, "outputs as without drafts": "1 of 2"}
    assert row["tree against chain, by prompt"] == {"median": 1.5, "min": 1.0, "max": 2.0, "repeats": 2}
    assert row["prompts on which the tree emits more"] == 1
