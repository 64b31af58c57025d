"""The simulator against a real server on this machine's CPU: predicted and measured tokens/s.

    python -m benchmarks.simulation_cpu [--rounds N] [--output FILE]

The reference target with its EAGLE-3 head (SPECCTL_SHARED): all drafts are full, as the simulator has them.
``simulation_check`` says how; ``tests/engine/test_stock_server.py`` holds what drafting gains by it to 7 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.simulation_check import Check, Load
from testing.lossless import SHARED
from testing.provenance import provenance
from testing.servers import vllm_server

__all__ = ["checked_at"]

_MODELS = SHARED / "models"
_CONFIG = {
    "method": "eagle3",
    "model": str(_MODELS / "reference-eagle3"),
    "num_speculative_tokens": 4,
    "specctl": {},
}
_LOADS = [Load("chat", 0, 0.0, 64), Load("chat", 4, 0.0, 64)]
_OUTPUT_TOKENS = 64
_IDS = (7, 4000)
_PROMPT_TOKENS = (60, 400)
"""As those that the profile was measured with."""


def checked_at(url: str, folder: Path) -> Check:
    """64 requests at once without drafts, and with 4, in turn with 15 s of measuring."""
    return Check(url, _LOADS, {"chat": _bodies()}, folder, seconds=15.0, requests=300)


def _bodies() -> Iterator[dict[str, Any]]:
    """Prompts of which none begins as another: nothing comes from a cache."""
    rng = random.Random(0)
    for _ in itertools.count():
        prompt = [rng.randrange(*_IDS) for _ in range(rng.randint(*_PROMPT_TOKENS))]
        yield {
            "model": "model",
            "prompt": prompt,
            "max_tokens": _OUTPUT_TOKENS,
            "ignore_eos": True,
            "temperature": 0.0,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        vllm_server(_MODELS / "reference-target", Path(folder) / "server.log", _CONFIG) as server,
    ):
        check = checked_at(server.url, Path(folder))
        for _ in range(arguments.rounds):
            check.run_round()
        results = check.results()
        told = check.profile.model_dump(mode="json")
    for result in results:
        print(json.dumps(result))
    if arguments.output is not None:
        report = {"provenance": provenance(), "profile": told, "loads": results}
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
