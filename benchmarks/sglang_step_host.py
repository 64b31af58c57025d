"""Host time of a step beside the target's forward pass, SPECCTL_SUFFIX against stock NGRAM; no engine.

    python -m benchmarks.sglang_step_host --output FILE

In SGLang's environment, on the CPU. Both workers and both relays between steps are the real ones, in SGLang's
order of events under its overlap scheduler; the target, the sampler and kernels of the device are stood in
for, whose time is not counted. What on a GPU counts is the time and the number of torch operations from the
moment that the step before has come back until the target's forward pass is launched: the GPU idles
meanwhile. Texts are short, so that an operation costs what it costs to dispatch; each that is no view is a
launch or a copy on a GPU, of 5 to 10 us. Between two steps 16 MiB are read, as a scheduler does other things
for milliseconds: with warm caches the same calls take a third to a quarter of the time. Arms take turns.

``--device cuda`` takes a GPU's memory, copies and launches in the place of the CPU's, still without a target:
then the time until the forward pass ends when the device has done all that goes before it.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from specctl_sglang.compat import cpu_stand_ins

from testing.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=9, help="places that are verified of each request")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if given.device == "cpu":
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        # Before SGLang asks for sgl_kernel.
        cpu_stand_ins.install()
    from benchmarks.sglang_step_parts import compared
    from benchmarks.sglang_step_stand_ins import stand_in

    stand_in(given.device)
    figures = {}
    for requests in given.requests:
        figures[str(requests)] = compared(requests, given.width, given.rounds, given.device)
        for arm, told in figures[str(requests)].items():
            medians = ", ".join(f"{part} {one['median']:.0f} us" for part, one in told["us"].items())
            print(f"{requests} {arm}: {medians}; {told['torch operations']}", flush=True)
    origin = provenance()
    if given.device == "cuda":
        from benchmarks.gpu.device import device_provenance

        origin = device_provenance()
    written = {"provenance": origin, "verify width": given.width, "by requests": figures}
    given.output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
