"""``specctl autotune``: build the daemon and run it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from specctl.actuate.base import Actuator
from specctl.actuate.dry_run import DryRunActuator
from specctl.actuate.http import HttpActuator
from specctl.clock import SystemClock
from specctl.controller.audit import AuditLog
from specctl.controller.daemon import Fleet, stop_on_signals
from specctl.controller.loop import TargetLoop
from specctl.controller.rollout import RolloutGroup
from specctl.engine_profile import EngineProfile, load_profile
from specctl.errors import SimulationInputError, TargetError
from specctl.estimate.pooled_fit import prepare
from specctl.http_client import HttpClient, read_token
from specctl.metrics.exporter import Exporter
from specctl.observe.engine import EngineObserver
from specctl.policy.loader import find_policy
from specctl.policy.watch import PolicyFile, PolicyFiles
from specctl.targets.base import Assignment, make_target
from specctl.targets.file import Rule, TargetsFile
from specctl.targets.fixed import FixedSource
from specctl.targets.roster import LiveRoster

__all__ = ["autotune", "owner_name", "read_profiles"]

logger = logging.getLogger(__name__)


def autotune(options: argparse.Namespace) -> int:
    """Raises SpecctlError for what is wrong before the first look; later failures are logged."""
    _check(options)
    clock = SystemClock()
    policies = PolicyFiles()
    roster = _roster(options, policies, clock)
    token = None if options.token_file is None else read_token(options.token_file)
    audit = AuditLog(options.audit_log, clock)
    exporter = Exporter()
    owner = owner_name(f"autotune {_name(options, policies) or 'policy'}")
    groups: dict[str, RolloutGroup] = {}
    profiles = read_profiles(options.engine_profile)

    def make_loop(assignment: Assignment, policy: PolicyFile) -> TargetLoop:
        client = HttpClient(assignment.target.url, token=token)
        actuator: Actuator = HttpActuator(client)
        if options.dry_run:
            actuator = DryRunActuator(actuator)
        return TargetLoop(
            assignment.target.url,
            EngineObserver(client, clock),
            actuator,
            policy,
            owner=owner,
            clock=clock,
            audit=audit,
            exporter=exporter,
            group=groups.setdefault(assignment.group, RolloutGroup()),
            is_frozen=lambda: roster.is_frozen,
            profiles=profiles,
        )

    prepare()
    with _served(exporter, options):
        asyncio.run(_run(roster, Fleet(roster, policies, make_loop, exporter, clock)))
    return 0


@contextmanager
def _served(exporter: Exporter, options: argparse.Namespace) -> Iterator[None]:
    """The daemon's own metrics, where a port is given."""
    stop = exporter.serve(options.metrics_host, options.metrics_port) if options.metrics_port else None
    try:
        yield
    finally:
        if stop is not None:
            stop()


def read_profiles(paths: Sequence[Path]) -> list[EngineProfile]:
    """Of files, and of folders' YAML files. Raises SpecctlError for the first that is none."""
    return [load_profile(file) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.yaml"))
    if not found:
        raise SimulationInputError(f"{path}: expected a file *.yaml in the folder, got none")
    return found


def _check(options: argparse.Namespace) -> None:
    if not options.target and options.targets is None:
        options.refuse("one of --target and --targets is required")
    if options.target and options.policy is None:
        options.refuse("--target needs --policy")


def owner_name(what: str) -> str:
    """Tells apart two processes that change one target, in printable ASCII of at most 128 characters."""
    host = socket.gethostname().encode("ascii", "replace").decode()[:64]
    plain = what.encode("ascii", "replace").decode()
    return f"{plain}@{host}:{os.getpid()}"[:128]


def _name(options: argparse.Namespace, policies: PolicyFiles) -> str:
    """The same for all targets, whatever their policy: a policy that changes must not cost the lease."""
    if options.targets is not None:
        return str(options.targets.stem)
    return policies.get(find_policy(options.policy)).policy.name


def _roster(options: argparse.Namespace, policies: PolicyFiles, clock: SystemClock) -> LiveRoster:
    def checked(name: str, folder: Path) -> Path:
        inside = folder / name
        path = inside if inside.exists() else find_policy(name)
        policies.get(path)
        return path

    rules = [] if options.policy is None else [Rule((), checked(options.policy, Path()))]
    targets = [make_target(url) for url in options.target]
    for i, target in enumerate(targets):
        if target.key in {other.key for other in targets[:i]}:
            raise TargetError(f"{target.url}: given twice")
    file = None if options.targets is None else TargetsFile(options.targets, checked)
    return LiveRoster(FixedSource("command line", targets), rules, file, clock)


def _settle_memory() -> None:
    """What start-up made stays; without this, 7 % of a busy daemon goes into looking through it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _run(roster: LiveRoster, fleet: Fleet[PolicyFile]) -> None:
    _settle_memory()
    stop = asyncio.Event()
    stop_on_signals(stop)
    await roster.read_fixed()
    for assignment in roster.assignments():
        logger.info("%s: policy %s", assignment.target.url, assignment.policy)
    async with asyncio.TaskGroup() as group:
        group.create_task(roster.run(stop))
        group.create_task(fleet.run(stop))
