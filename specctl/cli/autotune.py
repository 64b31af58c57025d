"""``specctl autotune``: build the daemon and run it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from aiohttp.web import Application

from specctl.cli.options import FILE, POLICY, token_file_option
from specctl.clock import SystemClock
from specctl.core.rollout import RolloutGroup
from specctl.daemon.audit import AuditLog
from specctl.daemon.context import LoopContext
from specctl.daemon.controls import Controls
from specctl.daemon.fleet import Fleet, stop_on_signals
from specctl.daemon.loop import TargetLoop
from specctl.daemon.reporter import Reporter
from specctl.daemon.served import served
from specctl.daemon.spans import export_spans
from specctl.engine_api.client import EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.engine_api.owner import owner_name
from specctl.errors import TargetError
from specctl.http_client import HttpClient, read_token
from specctl.local_file import is_file
from specctl.metrics.exporter import Exporter
from specctl.page.access import PageAccess
from specctl.page.routes import add_page
from specctl.policy.loader import PolicyFile, PolicyFiles, find_policy
from specctl.targets.base import Assignment, FixedSource, make_target
from specctl.targets.file import Rule, TargetsFile
from specctl.targets.roster import LiveRoster
from specctl.terminal import examples
from specctl.watch.board import Board
from specctl.watch.views import FrozenFile, FrozenFiles

__all__ = ["autotune"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """As given on the command line."""

    policy: str | None
    target: tuple[str, ...]
    targets: Path | None
    token_file: Path | None
    audit_log: Path | None
    metrics_port: int
    metrics_host: str
    page_token_file: Path | None
    dry_run: bool


@click.command(
    epilog=examples(
        "specctl autotune --policy balanced --target http://localhost:8000",
        "specctl autotune --policy balanced --target http://localhost:8000 --dry-run",
        "specctl autotune --targets targets.yaml --token-file token --audit-log decisions.jsonl",
    )
)
@click.option(
    "--policy",
    type=POLICY,
    metavar="FILE",
    help="a file, or a shipped policy's name; with --targets: for servers that no rule of it matches",
)
@click.option("--target", multiple=True, metavar="URL", help="a server to steer; repeat for more")
@click.option(
    "--targets", type=FILE, metavar="FILE", help="servers, DNS names, pods, and rules for their policies"
)
@token_file_option("control")
@click.option("--audit-log", type=FILE, metavar="FILE", help="append changes and events to it, as JSON lines")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=9109,
    metavar="N",
    help="port of the page and of /metrics; default: 9109; 0: none",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    metavar="HOST",
    help="address that this port listens on; default: 127.0.0.1",
)
@click.option(
    "--page-token-file",
    type=FILE,
    metavar="FILE",
    help="lines read:TOKEN and control:TOKEN; without it only this host reads the page, and nobody changes "
    "anything there",
)
@click.option("--dry-run", is_flag=True, help="decide and log, change nothing")
def autotune(**given: Any) -> int:
    """Watch servers and retune them until SIGTERM or SIGINT.

    A stop releases the lease and leaves in force what the policy's on_stop says. If the daemon is killed, the
    lease ends by itself and the server takes the policy's fallback.
    """
    return _autotune(_Options(**given))


def _autotune(options: _Options) -> int:
    """Raises SpecctlError for what is wrong before the first poll; later failures are logged."""
    _check(options)
    clock = SystemClock()
    policies = PolicyFiles()
    roster = _roster(options, policies, clock)
    token = None if options.token_file is None else read_token(options.token_file)
    exporter, controls, access = Exporter(clock), Controls(), PageAccess(options.page_token_file)
    audit = AuditLog(options.audit_log, clock, exporter.audit_lost)
    context = LoopContext(
        owner=owner_name(f"autotune {_name(options, policies) or 'policy'}"),
        clock=clock,
        is_dry_run=options.dry_run,
        is_frozen=lambda: roster.is_frozen,
    )
    board = Board(context.owner, clock)
    board.forgotten = controls.forget
    groups: dict[str, RolloutGroup] = {}

    def make_loop(assignment: Assignment, policy: PolicyFile) -> TargetLoop:
        target = assignment.target
        client = EngineClient(HttpClient(target.url, token=token))
        shown = board.add(target.name)
        reporter = Reporter(target.name, context.owner, audit, exporter, shown)
        group = groups.setdefault(assignment.group, RolloutGroup())
        over = controls.add(target.name, policy, reporter)
        shown.mode = lambda: over.mode
        own = replace(context, is_trial=lambda: over.is_dry_run)
        return TargetLoop(target.name, EngineObserver(client, clock), client, over, reporter, own, group)

    fleet = Fleet(roster, policies, make_loop, exporter, clock, board)

    def frozen_files() -> FrozenFiles:
        return _frozen_files(policies, roster, fleet)

    def page(app: Application) -> None:
        add_page(app, board, access, controls.change, is_dry_run=options.dry_run)

    host, port = options.metrics_host, options.metrics_port
    asyncio.run(_run(roster, fleet, served(exporter, frozen_files, host, port, board, page)))
    return 0


def _frozen_files(policies: PolicyFiles, roster: LiveRoster, fleet: Fleet) -> FrozenFiles:
    """As the daemon took each file last, for ``specctl freeze``."""
    known: list[tuple[Path, bool, str | None, Path | None]] = [
        (file.resolved, file.policy.frozen, file.refusal, file.path) for file in policies.files
    ]
    if roster.file is not None:
        known.append((roster.file.resolved, roster.file.value.frozen, roster.file.refusal, None))
    files = []
    for path, is_frozen, refusal, policy in known:
        loops = fleet.loops_of(policy)
        unsettled = sum(loop.acting_frozen is not None and loop.acting_frozen != is_frozen for loop in loops)
        files.append(
            FrozenFile(
                path=str(path),
                frozen=is_frozen,
                targets=len(loops),
                unsettled_targets=unsettled,
                refusal=refusal,
            )
        )
    return FrozenFiles(files=tuple(files))


def _check(options: _Options) -> None:
    if not options.metrics_host:
        # To the system that is every address of this machine: a script's variable that was not set.
        raise click.UsageError("--metrics-host is empty; 0.0.0.0 is every address")
    if not options.target and options.targets is None:
        raise click.UsageError("one of --target and --targets is required")
    if options.target and options.policy is None:
        raise click.UsageError("--target needs --policy")


def _name(options: _Options, policies: PolicyFiles) -> str:
    """The same for all targets, whatever their policy: a policy that changes must not cost the lease."""
    if options.targets is not None:
        return str(options.targets.stem)
    assert options.policy is not None, "checked"
    return policies.get(find_policy(options.policy)).policy.name


def _roster(options: _Options, policies: PolicyFiles, clock: SystemClock) -> LiveRoster:
    def checked(name: str, folder: Path) -> Path:
        inside = folder / name
        path = inside if is_file(inside) else find_policy(name)
        policies.get(path)
        return path

    rules = [] if options.policy is None else [Rule((), checked(options.policy, Path()))]
    targets = [make_target(url) for url in options.target]
    for i, target in enumerate(targets):
        if target.key in {other.key for other in targets[:i]}:
            raise TargetError(f"{target.name}: given twice")
    file = None if options.targets is None else TargetsFile(options.targets, checked)
    return LiveRoster(FixedSource("command line", targets), rules, file, clock)


def _allow_descriptors() -> None:
    """As many as the system allows: each target holds one or two, and the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    logger.debug("up to %d descriptors", soft)


def _settle_memory() -> None:
    """What start-up made stays; without this, 7 % of a busy daemon goes into looking through it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _run(roster: LiveRoster, fleet: Fleet, port: AbstractAsyncContextManager[None]) -> None:
    export_spans()
    _settle_memory()
    _allow_descriptors()
    stop = asyncio.Event()
    stop_on_signals(stop)
    await roster.read_fixed()
    for assignment in roster.assignments():
        logger.info("%s: policy %s", assignment.target.name, assignment.policy)
    async with port, asyncio.TaskGroup() as group:
        group.create_task(roster.run(stop))
        group.create_task(fleet.run(stop))
