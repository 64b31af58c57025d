"""A comparison as a picture: decode batch, number of drafts, tokens so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specctl.errors import SpecctlError, install_words

if TYPE_CHECKING:
    from specctl.simulate.compare import ArmResult, Comparison

__all__ = ["draw", "shown"]

POINTS_MAX = 240
_RIVALS = ("off", "stock table", "sglang adaptive", "clairvoyant")


def shown(comparison: Comparison, policies: list[str]) -> list[ArmResult]:
    """The arms worth a line: policies, the best static number, off, the rules and the clairvoyant."""
    wanted = [*policies, *_RIVALS, comparison.best_static]
    return [result for result in comparison.results if result.name in wanted]


def draw(comparison: Comparison, policies: list[str], title: str, path: Path) -> None:
    """Write a PNG. Raises SpecctlError without matplotlib, or when the file cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecctlError(f"--chart needs the package matplotlib; {install_words('simulate')}") from None
    figure = Figure(figsize=(11, 9), layout="constrained")
    batch, drafts, tokens = figure.subplots(3, 1, sharex=True)
    off = comparison.arm("off")
    for result in shown(comparison, policies):
        is_ours = result.name in policies
        style = {
            "linewidth": 2.0 if is_ours else 1.0,
            "alpha": 1.0 if is_ours else 0.75,
            "zorder": 3 if is_ours else 2,
        }
        times, batches, numbers, ahead = _thinned(result, off)
        batch.plot(times, batches, label=result.name, **style)
        drafts.step(times, numbers, where="post", label=result.name, **style)
        tokens.plot(times, ahead, label=result.name, **style)
    batch.set_ylabel("decoding requests")
    drafts.set_ylabel("drafted tokens a request")
    tokens.set_ylabel("tokens ahead of off, thousands")
    tokens.set_xlabel("virtual seconds")
    batch.set_title(title, fontsize=10)
    figure.legend(*batch.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    for axes in (batch, drafts, tokens):
        axes.grid(alpha=0.3)
    try:
        figure.savefig(path, format="png", dpi=100)
    except OSError as error:
        raise SpecctlError(f"{path}: cannot be written: {error.strerror or error}") from error


def _thinned(result: ArmResult, off: ArmResult) -> tuple[list[float], list[float], list[float], list[float]]:
    """Means over at most POINTS_MAX windows; tokens against what off had at the same time."""
    import numpy as np

    series = result.series
    ahead = np.array(series.emitted_tokens) - np.interp(
        series.time_s, off.series.time_s, off.series.emitted_tokens
    )
    every = max(len(series.time_s) // POINTS_MAX, 1)
    starts = np.arange(0, len(series.time_s), every)
    counts = np.diff(np.append(starts, len(series.time_s)))

    def mean(values: list[float]) -> list[float]:
        return [float(v) for v in np.add.reduceat(np.array(values), starts) / counts]

    times = [series.time_s[i] for i in starts]
    return (
        times,
        mean(series.decode_batch),
        mean(series.num_speculative_tokens),
        [float(ahead[i]) / 1e3 for i in starts],
    )
