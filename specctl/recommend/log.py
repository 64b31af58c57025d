"""What a recorded log says: the load simulated with the method that it was recorded with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["log_words", "simulated"]


def simulated(log: Path, profile: str) -> dict[str, Any]:
    """Off, every static number and the policy balanced on the log's load. Raises SpecctlError."""
    from specctl.policy.loader import find_policy, load_policy
    from specctl.simulate.arms import STOCK_TABLE, arms_without_daemon
    from specctl.simulate.compare import compare
    from specctl.simulate.daemon import Autotune
    from specctl.simulate.engine import fitting
    from specctl.simulate.engine_profile import load_profile
    from specctl.simulate.files import find_file
    from specctl.simulate.recorded import load_recorded
    from specctl.simulate.scenario import load_scenario

    costs = load_profile(find_file(profile, "profiles"))
    load = load_recorded(log, seed=0)
    scenario = load.scenario or load_scenario(find_file("steady", "scenarios"))
    ours = Autotune("specctl autotune", load_policy(find_policy("balanced")))
    arms = [ours, *arms_without_daemon(costs.num_speculative_tokens_max, STOCK_TABLE)]
    found = compare(fitting(load.trace, costs), costs, scenario, arms, seed=0)
    off = found.arm("off")
    return {
        "log": str(log),
        "engine_profile": profile,
        "method": costs.method,
        "requests": len(load.trace),
        "acceptance": "recorded" if load.scenario is not None else f"assumed: {load.why_no_scenario}",
        "best_static": found.best_static,
        "arms": [
            {
                "name": result.name,
                "tokens_per_s": round(result.tokens_per_s, 1),
                "tpot_p50_s": result.tpot_p50_s,
                "speedup_vs_off": round(result.to_off, 3),
            }
            for result in found.results
        ],
        "off_tokens_per_s": round(off.tokens_per_s, 1),
    }


def log_words(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['log']} with the step costs of {found['engine_profile']} (method {found['method']}), "
        f"{found['requests']} requests, acceptance {found['acceptance']}:"
    ]
    shown = {"specctl autotune", "off", found["best_static"]}
    for arm in found["arms"]:
        if arm["name"] in shown:
            mark = " (best static number)" if arm["name"] == found["best_static"] else ""
            speed = f"{arm['tokens_per_s']:>9.1f} tokens/s ({arm['speedup_vs_off']:.2f} x off)"
            tpot = f"TPOT p50 {arm['tpot_p50_s'] * 1e3:.2f} ms"
            lines.append(f"  {arm['name'] + mark:<34} {speed}  {tpot}")
    return lines
