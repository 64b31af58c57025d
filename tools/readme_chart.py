"""Draw the README's chart from ``benchmarks/results/gpu-phases.json``: ``python -m tools.readme_chart``.

Bars are medians, their lines the least and the most round.
"""

from __future__ import annotations

import sys

import matplotlib as mpl
import matplotlib.pyplot as plt

from tools.results_figures import ROOT, figure_at

mpl.use("Agg")
CHART = ROOT / "docs" / "img" / "phases.svg"
FILE = "gpu-phases.json"


def main() -> int:
    phases = figure_at(FILE, "phases")
    kinds = ("copying", "chat")
    requests = sorted({int(phase.split("-")[1]) for phase in phases})
    mpl.rcParams.update(
        {"svg.hashsalt": "specctl", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11}
    )
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for i, (kind, hatch, colour) in enumerate(zip(kinds, ("", "//"), ("#3f51b5", "#e07b00"), strict=True)):
        ratios = [phases[f"{kind}-{n}"]["to_never_enabled"] for n in requests]
        heights = [ratio["median"] for ratio in ratios]
        spread = [
            [ratio["median"] - ratio["least"] for ratio in ratios],
            [ratio["most"] - ratio["median"] for ratio in ratios],
        ]
        places = [j + (i - 0.5) * 0.38 for j in range(len(requests))]
        bars = axes.bar(places, heights, 0.36, label=kind, color=colour, hatch=hatch, edgecolor="white")
        axes.errorbar(places, heights, spread, fmt="none", ecolor="#333333", elinewidth=1, capsize=3)
        axes.bar_label(bars, fmt="%.2f", padding=5, color="#333333")
    axes.axhline(1, color="#333333", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(requests)), [f"{n} request{'s' * (n > 1)}" for n in requests])
    axes.set_ylim(0, 1.2 * max(phase["to_never_enabled"]["median"] for phase in phases.values()))
    axes.set_ylabel("tokens/s against\nno speculation")
    axes.set_title("specctl autotune on one H200, 8B-sized Llama, vLLM 0.33.0: never enabled = 1", loc="left")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.patch.set_facecolor("white")
    figure.savefig(CHART, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
