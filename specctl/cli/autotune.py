"""``specctl autotune``: build the daemon and run it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket

from specctl.actuate.base import Actuator
from specctl.actuate.dry_run import DryRunActuator
from specctl.actuate.http import HttpActuator
from specctl.clock import Clock, SystemClock
from specctl.controller.audit import AuditLog
from specctl.controller.daemon import run_daemon, stop_on_signals
from specctl.controller.loop import TargetLoop
from specctl.errors import TargetError
from specctl.estimate.pooled_fit import prepare
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.metrics.exporter import Exporter
from specctl.observe.vllm import VllmObserver
from specctl.policy.loader import find_policy
from specctl.policy.watch import PolicyFile

__all__ = ["autotune", "owner_name"]

logger = logging.getLogger(__name__)


def autotune(options: argparse.Namespace) -> int:
    """Raises SpecctlError for what is wrong before the first look; later failures are logged."""
    policy = PolicyFile(find_policy(options.policy))
    targets = [normalise_target(target) for target in options.target]
    repeated = {target for target in targets if targets.count(target) > 1}
    if repeated:
        raise TargetError(f"{min(repeated)}: given twice")
    token = None if options.token_file is None else read_token(options.token_file)
    clock = SystemClock()
    audit = AuditLog(options.audit_log, clock)
    exporter = Exporter()
    prepare()
    stop_serving = (
        exporter.serve(options.metrics_host, options.metrics_port) if options.metrics_port else None
    )
    try:
        asyncio.run(_run(targets, policy, token, clock, audit, exporter, dry_run=options.dry_run))
    finally:
        if stop_serving is not None:
            stop_serving()
    return 0


def owner_name(policy_name: str) -> str:
    """Tells apart two daemons on one target, in printable ASCII of at most 128 characters."""
    host = socket.gethostname().encode("ascii", "replace").decode()[:64]
    return f"autotune {policy_name or 'policy'}@{host}:{os.getpid()}"[:128]


async def _run(
    targets: list[str],
    policy: PolicyFile,
    token: str | None,
    clock: Clock,
    audit: AuditLog,
    exporter: Exporter,
    *,
    dry_run: bool,
) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    owner = owner_name(policy.policy.name)
    loops = []
    for target in targets:
        client = HttpClient(target, token=token)
        actuator: Actuator = HttpActuator(client)
        if dry_run:
            actuator = DryRunActuator(actuator)
        observer = VllmObserver(client, clock)
        loops.append(
            TargetLoop(
                target, observer, actuator, policy, owner=owner, clock=clock, audit=audit, exporter=exporter
            )
        )
    mode = "dry run, " if dry_run else ""
    logger.info("%s%d target(s), policy %s (%s)", mode, len(loops), policy.path, policy.policy.kind)
    await run_daemon(loops, policy, exporter, clock, stop)
