"""``specctl replay LOG --policy P``: what the daemon decides on a recorded log, poll by poll."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from specctl.cli.options import FILE, POLICY
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable
from specctl.core.controller import Controller
from specctl.core.explain import table_changes
from specctl.core.messages import Plan
from specctl.engine_api.deltas import CounterReset, Gains, TelemetryGains, levels
from specctl.errors import SimulationInputError
from specctl.policy.loader import find_policy, load_policy
from specctl.policy.models import AnyPolicy
from specctl.record.lines import CapabilitiesLine, Header, Line, Reading
from specctl.record.reader import Cells, read_lines
from specctl.terminal import examples, json_option, print_json, progress
from specctl.types import Observation

__all__ = ["Replay", "replay"]

logger = logging.getLogger(__name__)


@click.command(
    epilog=examples(
        "specctl replay load.jsonl --policy balanced",
        "specctl replay load.jsonl --policy policy.yaml --json | jq .reasons",
    )
)
@click.argument("log", type=FILE)
@click.option(
    "--policy", required=True, type=POLICY, metavar="FILE", help="a file, or a shipped policy's name"
)
@json_option()
def replay(log: Path, policy: str, as_json: bool) -> int:
    """Pass a log of specctl record through the decisions of specctl autotune.

    Prints a line for each reading: seconds of the log, reason, change or why there is none. A decision counts
    as put in force where the log's next table shows it. Bounds on measured latencies are left out: a log has
    none.
    """
    skipped: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    changes, decisions = 0, []
    plans = Replay(load_policy(find_policy(policy))).plans(read_lines(log, skipped))
    for plan in _with_progress(plans) if as_json else plans:
        reasons[plan.reason.value] += 1
        changes += plan.is_change
        if as_json:
            decisions.append(_decision(plan))
        else:
            click.echo(_line(plan))
    total = reasons.total()
    if not total:
        raise SimulationInputError(f"{log}: no reading of a server with the specctl plugin")
    if as_json:
        counts = {"total": total, "changes": changes, "reasons": dict(reasons.most_common())}
        print_json({**counts, "decisions": decisions, "skipped": skipped})
    else:
        words = ", ".join(f"{name} {count}" for name, count in reasons.most_common())
        click.echo(f"{total} decisions, {changes} of them change the table: {words}")
    for words, count in skipped.items():
        logger.warning("%s: skipped: %s (%d)", log, words, count)
    return 0


def _with_progress(plans: Iterator[Plan]) -> Iterator[Plan]:
    with progress("replaying") as update:
        for plan in plans:
            update(words=f"replaying: {plan.time_s:.0f} s of the log")
            yield plan


def _line(plan: Plan) -> str:
    words = plan.explanation if plan.changed or not plan.is_change else "; ".join(plan.changes)
    return f"{plan.time_s:9.1f} s  {plan.reason.value:<16}  {words}"


def _decision(plan: Plan) -> dict[str, Any]:
    return {
        "time_s": plan.time_s,
        "reason": plan.reason.value,
        "is_change": plan.is_change,
        "changes": list(plan.changes),
        "explanation": plan.explanation,
        "rows": None if plan.rows is None else [row.model_dump(mode="json") for row in plan.rows],
    }


class Replay:
    """One policy over the lines of a log."""

    def __init__(self, policy: AnyPolicy) -> None:
        self._policy = policy
        self._begin(None)

    def _begin(self, capabilities: Capabilities | None) -> None:
        """Another recording, or another start of the engine."""
        self._capabilities = capabilities
        self._controller = Controller()
        self._cells = Cells()
        self._telemetry = TelemetryGains()
        self._table: AppliedTable | None = None
        self._planned: Plan | None = None

    def plans(self, lines: Iterator[Line]) -> Iterator[Plan]:
        """One for each reading of a server with the plugin; ``time_s`` since its recording's header."""
        target = ""
        for line in lines:
            if isinstance(line, Header):
                target = line.target
                self._begin(None)
            elif isinstance(line, CapabilitiesLine):
                known, capabilities = self._capabilities, line.capabilities
                if known is None or capabilities is None or capabilities.boot_id != known.boot_id:
                    self._begin(capabilities)
            elif isinstance(line, Reading) and self._capabilities is not None:
                observation = self._observation(line, target, self._capabilities)
                self._controller.learn(observation)
                self._planned = self._controller.plan(observation, self._policy)
                yield self._planned

    def _observation(self, reading: Reading, target: str, capabilities: Capabilities) -> Observation:
        table, telemetry = reading.table, self._cells.whole(reading.telemetry)
        if table is not None:
            rows = None if self._planned is None else self._planned.rows
            if self._planned is not None and rows is not None and not table_changes(rows, table.rows):
                self._controller.accepted(self._planned)
            self._table = table
        try:
            gains = self._telemetry.since_last(reading.time_s, telemetry)
        except CounterReset as reset:
            logger.warning("%.1f s: %s", reading.time_s, reset)
            gains = Gains()
        return Observation(
            target=target,
            time_s=reading.time_s,
            capabilities=capabilities,
            applied=self._table,
            **gains._asdict(),
            **levels(telemetry),
            gaps=reading.gaps,
        )
