"""SGLang servers on one GPU at the same time, taking turns: stock algorithms, ours and no speculation.

    python -m benchmarks.gpu.sglang_compare copying table off drafts --model MODEL --prompts FILE ...
    python -m benchmarks.gpu.sglang_compare peagle --model MODEL --eagle3 HEAD --peagle HEAD ...
    python -m benchmarks.gpu.sglang_compare tree --model MODEL --eagle3 HEAD --prompts FILE --folder OUT
    python -m benchmarks.gpu.sglang_compare copying table off --quick --model MODEL --folder OUT

copying: SPECCTL_SUFFIX, stock NGRAM and off on prompts none of which occurs twice.
off: SPECCTL_SUFFIX with a table of 0 drafts against a server that never speculates.
table: how soon a change of the table takes effect while requests run, and what memory its graphs take.
drafts: each prepared number of drafts alone, to find out which table pays.
tree: stock EAGLE3 with trees against chains of the same verify width, one request: tokens a step.
peagle: SPECCTL_PEAGLE against stock EAGLE3.
sampled: sampled requests verified by our kernels against SGLang's: tokens/s, and the law of the answers.

In SGLang's environment, with the plugin installed. Parts named together
share their servers. Each part writes sglang-PART.json; what ``--seconds`` do not suffice for is left out and
named. Outputs that are not off's are scored by off (benchmarks.gpu.ties); an arm gets no ratio unless all of
them part by a tie. ``--quick``: few tokens, on the CPU, without a prompt file.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks.gpu.device import device_provenance
from benchmarks.gpu.sglang_arms import Arm, Deadline, Machine, on_a_cpu, standing
from benchmarks.gpu.sglang_parts import copying, off, peagle, tree
from benchmarks.gpu.sglang_sampled import sampled
from benchmarks.gpu.sglang_settings import DEFAULTS, chosen
from benchmarks.gpu.sglang_table import drafts, table

_PARTS = {
    "copying": copying,
    "off": off,
    "table": table,
    "drafts": drafts,
    "tree": tree,
    "peagle": peagle,
    "sampled": sampled,
}
_BATCHES = {
    "copying": [1, 16, 64],
    "off": [128, 256],
    "table": [16],
    "drafts": [16, 64],
    "tree": [1],
    "peagle": [1, 8],
    "sampled": [64, 256],
}
_TOKENS = {
    "copying": 256,
    "off": 192,
    "table": 256,
    "drafts": 256,
    "tree": 192,
    "peagle": 192,
    "sampled": 256,
}
_QUICK_BATCHES = {
    "copying": [1, 2],
    "off": [2],
    "table": [2],
    "drafts": [2],
    "tree": [1],
    "peagle": [1],
    "sampled": [2],
}
_QUICK_TOKENS = 24


def quick_prompts(count: int) -> list[list[int]]:
    """Random passages, each twice and begun a third time."""
    generator = random.Random(0)
    passages = [[generator.randrange(300, 16_000) for _ in range(24)] for _ in range(count)]
    return [[*passage, *passage, *passage[:8]] for passage in passages]


def machine_of(given: argparse.Namespace) -> Machine:
    heads = {"eagle3": given.eagle3, "peagle": given.peagle, "token_map": given.token_map}
    common = tuple(given.argument)
    if given.quick:
        dtype = given.dtype or "float32"
        return Machine(given.model, heads, dtype, memory_ratio=0.5, is_cpu=True, arguments=common)
    graphs = tuple(given.prefill_graphs)
    dtype = given.dtype or "bfloat16"
    return Machine(given.model, heads, dtype, given.attention, arguments=common, prefill_graphs=graphs)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=_PARTS)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--eagle3", default="", help="EAGLE-3 head")
    parser.add_argument("--peagle", default="", help="P-EAGLE head")
    parser.add_argument("--token-map", default="", help="tokens that the P-EAGLE head is to choose among")
    parser.add_argument("--prompts", type=Path, help="JSON list of lists of token ids")
    parser.add_argument("--folder", type=Path, required=True, help="for results and logs")
    parser.add_argument("--arms", nargs="*", help="by name; without it those of the parts")
    parser.add_argument("--arms-file", type=Path, help="more of them (benchmarks.gpu.sglang_settings)")
    parser.add_argument("--batch", type=int, nargs="*", help="requests at the same time")
    parser.add_argument("--repeats", type=int, help="timed ones (3)")
    parser.add_argument("--dtype", help="bfloat16; for --quick float32, where no output may differ")
    parser.add_argument("--attention", default="triton", help="--attention-backend of every server")
    parser.add_argument(
        "--prefill-graphs", type=int, nargs="*", default=[], help="tokens; without it prompts run eagerly"
    )
    parser.add_argument("--argument", action="append", default=[], help="of every server, once for each word")
    parser.add_argument(
        "--seconds", type=float, default=450.0, help="of the whole run, servers' start included"
    )
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    if given.prompts is None and not given.quick:
        parser.error("--prompts is needed, but for --quick")
    return given


def run_part(part: str, arms: Sequence[Arm], prompts: list[list[int]], given: argparse.Namespace) -> bool:
    """Writes its result file; whether there is one."""
    batches = given.batch or (_QUICK_BATCHES if given.quick else _BATCHES)[part]
    tokens = _QUICK_TOKENS if given.quick else _TOKENS[part]
    try:
        figures = _PARTS[part](list(arms), prompts, batches, given.repeats, tokens)
    except (RuntimeError, ValueError, httpx.HTTPError) as error:
        print(f"{part}: {error!r}", flush=True)
        return False
    found = {
        "servers": {arm.name: arm.described() for arm in arms},
        "max tokens": tokens,
        "attention": "torch_native" if given.quick else given.attention,
        "prefill graphs": [] if given.quick else given.prefill_graphs,
        **figures,
    }
    path = given.folder / f"sglang-{part}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return True


def main() -> int:
    given = parsed()
    given.folder.mkdir(parents=True, exist_ok=True)
    # A time limit of the caller's must not leave servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    deadline = Deadline(given.seconds)
    names = given.arms or dict.fromkeys(name for part in given.parts for name in DEFAULTS[part])
    settings = dict(chosen(names, given.arms_file))
    if given.quick:
        settings = {name: on_a_cpu(one) for name, one in settings.items()}
    prompts = quick_prompts(128) if given.quick else json.loads(given.prompts.read_text(encoding="utf-8"))
    with standing(settings, machine_of(given), given.folder / "logs", deadline) as arms:
        written = [part for part in given.parts if run_part(part, arms, prompts, given)]
    # Only now may this process ask for the GPU.
    origin = device_provenance()
    for part in written:
        path = given.folder / f"sglang-{part}.json"
        figures = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({"provenance": origin, **figures}, indent=1) + "\n", encoding="utf-8")
    return 0 if len(written) == len(given.parts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
