"""Does a daemon hold the table that it means to steer? From its own metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from specctl.doctor.finding import Finding, error, warning
from specctl.doctor.seen import Seen
from specctl.errors import TargetError
from specctl.http_client import HttpClient

__all__ = ["daemon_findings"]


async def daemon_findings(daemon: str, seen: Seen) -> Iterator[Finding]:
    """``daemon``: URL of its metrics port."""
    try:
        async with HttpClient(daemon) as http:
            response = await http.get("/metrics")
            values = _values(response.body.decode("utf-8", errors="replace"), seen.target)
    except (TargetError, ValueError) as reason:
        return iter(
            [error("daemon-unreachable", "the daemon's metrics cannot be read", str(reason), "--daemon URL")]
        )
    return _judged(daemon, values, seen)


def _values(page: str, target: str) -> dict[str, float]:
    """Of this target, by name. Raises ValueError for what is no page of metrics."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels.get("target", target).rstrip("/") == target and sample.name.startswith("specctl_")
    }


def _judged(daemon: str, values: dict[str, float], seen: Seen) -> Iterator[Finding]:
    if "specctl_target_up" not in values:
        yield warning(
            "daemon-elsewhere",
            "the daemon does not watch this server",
            f"{daemon}/metrics has no specctl_target_up of {seen.target}",
            "add the server with --target or to the targets file, by the same URL",
        )
        return
    table = seen.table
    if values.get("specctl_lease_held") == 0 and table is not None and table.lease_remaining_s is not None:
        yield error(
            "two-daemons",
            "another daemon holds the table that this one means to steer",
            f"{daemon}: specctl_lease_held 0; the lease is {table.owner}'s",
            "stop one of them",
        )
    if values.get("specctl_policy_valid") == 0:
        yield warning(
            "policy-refused",
            "the daemon goes on with an older policy: the file on disk is wrong",
            f"{daemon}: specctl_policy_valid 0",
            "specctl policy validate FILE",
        )
