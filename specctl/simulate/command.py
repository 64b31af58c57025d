"""``specctl simulate``."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specctl.cli.options import FILE, POLICY
from specctl.errors import SimulationInputError, SpecctlError, install_words
from specctl.policy.loader import find_policy, load_policy
from specctl.policy.models import AnyPolicy
from specctl.record.reader import is_log
from specctl.simulate.chart import draw
from specctl.simulate.engine_profile import EngineProfile, load_profile
from specctl.simulate.files import find_file
from specctl.simulate.recorded import load_recorded
from specctl.simulate.report import notes, table, write_json
from specctl.simulate.scenario import Scenario, load_scenario
from specctl.simulate.trace import Trace, load_trace
from specctl.terminal import examples, progress

if TYPE_CHECKING:
    from specctl.simulate.arms import Arm

__all__ = ["simulate"]

logger = logging.getLogger(__name__)


def _key_value(text: str) -> tuple[str, str]:
    """KEY=VALUE."""
    key, separator, value = text.partition("=")
    if not separator or not key or not value:
        raise click.BadParameter(f"expected KEY=VALUE, got {text!r}")
    return key, value


def _batch_table(text: str) -> list[tuple[int, int, int]]:
    """FROM-TO:NUMBER,...; the ranges must begin at 1, touch, and the last may end open."""
    ranges: list[tuple[int, int, int]] = []
    for part in text.split(","):
        span, _, number = part.partition(":")
        low, dash, high = span.partition("-")
        try:
            ranges.append((int(low), int(high) if high else sys.maxsize if dash else int(low), int(number)))
        except ValueError:
            raise click.BadParameter(f"expected FROM-TO:NUMBER,..., got {part!r}") from None
        expected = 1 if len(ranges) == 1 else ranges[-2][1] + 1
        if ranges[-1][0] != expected or ranges[-1][1] < expected or ranges[-1][2] < 0:
            raise click.BadParameter(f"expected a range from {expected} on and a number from 0, got {part!r}")
    return ranges


def _positive(text: str) -> int:
    """A whole number from 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise click.BadParameter(f"expected a whole number from 1, got {text!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """As given on the command line."""

    trace: Path
    engine_profile: str
    acceptance: str | None
    policy: tuple[str, ...]
    speed: float
    requests: int | None
    seed: int
    batch_table: list[tuple[int, int, int]] | None
    fingerprint: tuple[tuple[str, str], ...]
    json_file: Path | None
    chart: Path | None


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``--policy A B`` is ``--policy A --policy B``."""
        given: list[str] = []
        is_policy = False
        for argument in args:
            if argument.startswith("-"):
                is_policy = argument == "--policy"
            elif is_policy and given[-1] != "--policy":
                given.append("--policy")
            given.append(argument)
        return super().parse_args(ctx, given)


@click.command(
    cls=_Command,
    epilog=examples(
        "specctl simulate --trace load.jsonl --engine-profile gpu.yaml --policy balanced fixed",
        "specctl simulate --trace azure.csv --engine-profile h200-llama8b-vllm032 --policy balanced \\",
        "    --acceptance drifting --chart out.png --json out.json",
    ),
)
@click.option("--trace", required=True, type=FILE, metavar="FILE", help="CSV, or a log of specctl record")
@click.option(
    "--engine-profile", required=True, metavar="FILE", help="step costs: a file, or a shipped one's name"
)
@click.option(
    "--acceptance",
    metavar="FILE",
    help="a scenario: a file, or a shipped one's name; default: steady, for a log what it recorded",
)
@click.option(
    "--policy",
    required=True,
    multiple=True,
    type=POLICY,
    metavar="FILE...",
    help="policies to compare: files, or shipped ones' names",
)
@click.option("--speed", type=float, default=1.0, metavar="F", help="arrivals F times as dense; default: 1")
@click.option("--requests", type=_positive, metavar="N", help="only the first N requests; default: all")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, metavar="N", help="random seed; default: 0"
)
@click.option(
    "--batch-table",
    type=_batch_table,
    metavar="RANGES",
    help="drafts by requests, for the arm 'stock table'; default: 1-16:7,17-100:3,101-:0",
)
@click.option(
    "--fingerprint",
    type=_key_value,
    multiple=True,
    metavar="KEY=VALUE",
    help="refuse a profile of another gpu, model, engine, dtype or parallelism than named; repeat",
)
@click.option(
    "--json",
    "json_file",
    type=FILE,
    metavar="FILE",
    help="write the comparison as JSON; -: to standard output",
)
@click.option("--chart", type=FILE, metavar="FILE.png", help="draw the comparison; needs matplotlib")
def simulate(**given: Any) -> int:
    """Compare policies on a load, on virtual time."""
    return _simulate(_Options(**given))


def _simulate(options: _Options) -> int:
    """Raises PolicyError and SpecctlError. Prints the table; progress goes to the log."""
    _need_numba()
    from specctl.simulate.compare import compare
    from specctl.simulate.compiled import is_cached
    from specctl.simulate.stepping import advance

    profile = load_profile(find_file(options.engine_profile, "profiles"))
    profile.refuse_unless(dict(options.fingerprint))
    asked = None if options.acceptance is None else load_scenario(find_file(options.acceptance, "scenarios"))
    policies = _policies(options.policy)
    trace, recorded = _trace(options, profile)
    scenario = asked or recorded or load_scenario(find_file("steady", "scenarios"))
    arms = _arms(policies, options.batch_table, profile.num_speculative_tokens_max)
    if not is_cached(advance):
        logger.info("compiling the simulator, once: up to a minute")
    with progress("simulating", total=len(arms)) as update:
        begun: list[str] = []

        def on_arm(arm: str) -> None:
            logger.info("simulating: %s", arm)
            update(len(begun), f"simulating: {arm}")
            begun.append(arm)

        comparison = compare(trace, profile, scenario, arms, seed=options.seed, on_arm=on_arm)
    described = notes(trace, profile, scenario)
    if str(options.json_file) != "-":
        click.echo(f"{described}\n{table(comparison)}")
    if options.json_file is not None:
        inputs = {
            "trace": str(options.trace),
            "speed": options.speed,
            "seed": options.seed,
            "requests": len(trace),
            "skipped": dict(trace.skipped),
            "acceptance": scenario.model_dump(mode="json"),
            "engine_profile": profile.model_dump(mode="json"),
            "policies": {name: policy.model_dump(mode="json") for name, policy in policies.items()},
        }
        write_json(options.json_file, comparison, inputs)
    if options.chart is not None:
        draw(comparison, list(policies), described.splitlines()[0], options.chart)
    return 0


def _trace(options: _Options, profile: EngineProfile) -> tuple[Trace, Scenario | None]:
    """The requests; and of a log the acceptance, where no other is asked for."""
    from specctl.simulate.engine import fitting

    scenario = None
    if is_log(options.trace):
        trace, scenario = _recorded(options)
    else:
        trace = load_trace(options.trace).spread()
    if options.requests is not None:
        trace = trace.first(options.requests)
    trace = fitting(trace.scaled(options.speed), profile)
    if not len(trace):
        raise SimulationInputError(
            f"{options.trace}: expected a request that fits the server, got none ({dict(trace.skipped)})"
        )
    return trace, None if scenario is None else scenario.scaled(options.speed)


def _recorded(options: _Options) -> tuple[Trace, Scenario | None]:
    load = load_recorded(options.trace, seed=options.seed)
    if options.acceptance is not None:
        return load.trace, None
    if load.scenario is None:
        raise SimulationInputError(
            f"{options.trace}: its acceptance is not known: {load.why_no_scenario}; "
            "name one with --acceptance"
        )
    return load.trace, load.scenario


def _arms(
    policies: dict[str, AnyPolicy], ranges: list[tuple[int, int, int]] | None, drafts_max: int
) -> list[Arm]:
    from specctl.simulate.arms import STOCK_TABLE, arms_without_daemon
    from specctl.simulate.daemon import Autotune

    ours = [Autotune(name, policy) for name, policy in policies.items()]
    return [*ours, *arms_without_daemon(drafts_max, ranges or STOCK_TABLE)]


def _policies(files: Sequence[str]) -> dict[str, AnyPolicy]:
    """By name of the arm; equal names get a mark."""
    named: dict[str, AnyPolicy] = {}
    for file in files:
        path = find_policy(file)
        name = f"policy {path.stem}"
        while name in named:
            name += "'"
        named[name] = load_policy(path)
    return named


def _need_numba() -> None:
    """The simulator's steps are compiled; what takes them in is imported later."""
    if importlib.util.find_spec("numba") is None:
        raise SpecctlError(f"specctl simulate needs the package numba; {install_words('simulate')}")
