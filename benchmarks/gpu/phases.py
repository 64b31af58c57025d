"""A load of phases on a GPU, by one call of ``specctl bench``: ``specctl autotune``, every static setting and
a server that never enabled speculation.

    python -m benchmarks.gpu.phases --model MODEL --output FILE

Two servers of MODEL on one GPU, one with specctl_suffix; each takes half of its memory. A phase is a kind of
text and a number of requests in a closed loop; the phases go up through the numbers and down again, with the
other kind. The daemon stays through all phases of a round, its search included. ``--urls`` measures two
servers that run already.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from benchmarks.gpu.serving import NEVER, compared_pair, pair_options, write
from benchmarks.phases import OFF, OURS, summary

_OTHER = {"copying": "chat", "chat": "copying"}


def phases(numbers: Sequence[int]) -> list[tuple[str, int]]:
    """Up through the numbers and down again; both kinds at each number."""
    up = list(zip(itertools.cycle(_OTHER), numbers, strict=False))
    return up + [(_OTHER[kind], number) for kind, number in reversed(up)]


def main() -> int:
    parser = pair_options(__doc__, "phases")
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--settings", type=int, nargs="*", default=[0, 1, 3, 5, 8])
    parser.add_argument("--phase-s", type=float, default=15.0, help="of each phase in each arm")
    options = parser.parse_args()
    ours = OURS if options.policy == "balanced" else f"{OURS}:{options.policy}"
    words = []
    for arm in (OFF, *(str(number) for number in options.settings if number), ours):
        words += ["--arm", arm]
    for kind, number in phases(options.requests):
        words += ["--load", f"{kind} name={kind}-{number} concurrency={number} output={options.max_tokens}"]
    words += ["--rounds", str(options.rounds), "--seconds", str(options.phase_s)]
    config = {
        "method": "specctl_suffix",
        "num_speculative_tokens": max(options.settings),
        "use_global": False,
    }
    write(options.output, summary(compared_pair(options, config, words), NEVER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
