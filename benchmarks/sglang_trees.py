"""Tokens a step of trees against chains of the same verify width, with stock EAGLE3 on a real SGLang.

    python -m benchmarks.sglang_trees --prompts FILE --output FILE

One request at a time, greedy, in float32 on a CPU: how many tokens a step emits does not depend on the
machine. The reference target with its EAGLE-3 head; prompts are lists of token ids (benchmarks.gpu.prompts
--chat). A server for each shape of trees, depth and branches; width, and chain or tree, by the live table.
Chains and trees must give the tokens of no drafts at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.lossless import SHARED, put_table
from benchmarks.provenance import pairwise_ratios, provenance, summary
from benchmarks.server import sglang_server

_SHAPES = ("6x4", "9x2")
"""Depth x branches, with room for 31 drafts."""
_TIMEOUT_S = 600.0
_ONE_REQUEST = {"Connection": "close"}
"""A kept connection may be closed by the server just as the next request is sent."""


async def answers(
    client: httpx.AsyncClient, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[list[list[int]], list[int]]:
    """(tokens, steps) of each prompt. A prompt's own pass emits the first token, and is not a step."""
    outputs, steps = [], []
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    for prompt in prompts:
        answer = await client.post("/generate", json={"input_ids": list(prompt), "sampling_params": sampling})
        told: dict[str, Any] = answer.raise_for_status().json()
        outputs.append(told["output_ids"])
        steps.append(told["meta_info"]["spec_verify_ct"])
    return outputs, steps


def measured(shape: str, prompts: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    steps, topk = map(int, shape.split("x"))
    drafts = [width - 1 for width in arguments.widths]
    models = SHARED / "models"
    more = ["--speculative-draft-model-path", str(models / "reference-eagle3")]
    more += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)]
    more += ["--speculative-num-draft-tokens", str(max(arguments.widths)), "--skip-tokenizer-init"]
    options = {"candidates": [0, *drafts], "trees": [[steps, topk, width] for width in arguments.widths]}
    log = arguments.folder / f"tree-{shape}.log"
    environment = {"SPECCTL_SGLANG_OPTIONS": json.dumps(options)}
    with sglang_server(models / "reference-target", log, "EAGLE3", more, environment) as server:
        return asyncio.run(of_widths(server.url, shape, prompts, arguments))


async def of_widths(url: str, shape: str, prompts: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """By the verify width, of one server."""
    tree = tuple(map(int, shape.split("x")))
    found: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, headers=_ONE_REQUEST) as client:
        await put_table(client, 0, tree_topk=1)
        truth, _ = await answers(client, prompts, arguments.max_tokens)
        for width in arguments.widths:
            found[str(width)] = await compared(client, width, tree, prompts, truth, arguments)
            print(shape, width, json.dumps(found[str(width)]), flush=True)
    return found


async def compared(
    client: httpx.AsyncClient,
    width: int,
    tree: tuple[int, ...],
    prompts: Any,
    truth: list[list[int]],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    row: dict[str, Any] = {}
    for name, (depth, branches) in {"chain": (width - 1, 1), "tree": tree}.items():
        await put_table(client, depth, tree_topk=branches, verify_width_tokens=width)
        outputs, steps = await answers(client, prompts, arguments.max_tokens)
        emitted = [len(one) - 1 for one in outputs]
        rates[name] = pairwise_ratios(emitted, steps)
        row[name] = {
            "tokens a step": round(sum(emitted) / sum(steps), 4),
            "outputs as without drafts": f"{sum(map(list.__eq__, outputs, truth))} of {len(truth)}",
        }
    ratios = pairwise_ratios(rates["tree"], rates["chain"])
    row["tree against chain, by prompt"] = summary(ratios)
    row["prompts on which the tree emits more"] = sum(ratio > 1 for ratio in ratios)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON list of lists of token ids")
    parser.add_argument("--count", type=int, default=24, help="of the prompts")
    parser.add_argument("--shapes", nargs="*", default=_SHAPES, help="of trees, depth x branches")
    parser.add_argument("--widths", type=int, nargs="*", default=[16, 32])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/sglang-trees"), help="for logs")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    prompts = json.loads(arguments.prompts.read_text(encoding="utf-8"))[: arguments.count]
    figures = {shape: measured(shape, prompts, arguments) for shape in arguments.shapes}
    written = {"provenance": provenance(), "prompts": len(prompts), "trees, depth x branches": figures}
    arguments.output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
