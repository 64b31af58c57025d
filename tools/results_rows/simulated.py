"""The daemon in simulated loads, against an oracle and the best constant setting."""

from __future__ import annotations

from tools.results_figures import figure_at

FILE = "simulated-regret.json"
GROUPS = {
    "closed loop, 20 load shapes at 4 to 128 requests": "closed loop",
    "these 20, costs with steps at graph sizes": "staircase",
    "these 20, drafts for 40% of the text": "stretches",
    "these 20, all disturbances together": "all at once",
    "open loop, 24 cells of public traces": "open loop, public traces",
    "closed loop, 17 loads that nothing was tuned on": "held out",
    "these 17, drafts for 40% of the text": "held out, stretches",
    "these 17, all disturbances together": "held out, all at once",
    "6 loads that nothing was tuned on, a machine as slow as a CPU": "held out, slow machine",
    "these 6, drafts for 40% of the text": "held out, slow machine, stretches",
    "these 6, all disturbances together": "held out, slow machine, all at once",
}


def table() -> str:
    lines = [
        "| load | below the oracle: mean, worst | best constant: mean | worst cell against the best constant "
        "| decoding lost |",
        "| --- | --- | --- | --- | --- |",
    ]
    for load, group in GROUPS.items():
        arms = figure_at(FILE, "summary", group)
        ours, static = arms["autotune"], arms["best static"]
        below = ours["regret_ratio"]
        lines.append(
            f"| {load} | {below['mean']:.1%}, {below['worst']:.1%} | {static['regret_ratio']['mean']:.1%} | "
            f"{ours['to_best_static']['worst']:.3f} | {ours['lost_ratio']['mean']:.1%} |".replace("%", " %")
        )
    return "\n".join(lines)
