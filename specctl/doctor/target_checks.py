"""Everything that can be said of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specctl.contract.table import TableState
from specctl.core.controller import Controller
from specctl.core.messages import Reason
from specctl.doctor.finding import Finding, error, note, warning
from specctl.doctor.measured import measured_finding, sampled_findings
from specctl.doctor.memory_checks import LADDERS
from specctl.doctor.quality_checks import acceptance_findings
from specctl.doctor.report import Report
from specctl.doctor.seen import Seen, look
from specctl.engine.releases import untested_reason
from specctl.engine_api.client import EngineClient
from specctl.http_client import HttpClient
from specctl.policy.models import AnyPolicy
from specctl.types import Observation

__all__ = ["Asked", "examine_target"]

PATIENCE_S = 15.0
CLOCK_S = 5.0
KV_FULL_RATIO = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``measure_s`` None: nothing is changed."""

    target: str
    token: str | None = None
    window_s: float = 5.0
    policy: AnyPolicy | None = None
    measure_s: float | None = None
    daemons: tuple[str, ...] = ()


async def examine_target(asked: Asked) -> Report:
    report = Report(asked.target)
    async with HttpClient(asked.target, token=asked.token, timeout_s=PATIENCE_S) as http:
        client = EngineClient(http)
        seen = await look(client, http, asked.window_s)
        report.add(*_reach_findings(seen))
        report.checked += ["reach", "plugin"]
        if not seen.is_engine or (seen.trouble is not None and seen.capabilities is None):
            return report
        report.add(*_server_findings(seen))
        report.checked += ["metrics", "engine's release", "clocks", "memory"]
        _add_acceptance(report, seen)
        if seen.capabilities is None:
            report.skipped.append("table, lease and steps: the server does not tell them without the plugin")
            return report
        report.add(*_table_findings(seen), *_plugin_findings(seen))
        report.checked += ["table", "lease", "failures"]
        report.add(*sampled_findings(seen))
        if asked.policy is not None:
            report.add(_policy_finding(seen, asked.policy))
            report.checked.append("policy")
        if asked.measure_s is not None:
            found, why = await measured_finding(client, seen, asked.measure_s)
            report.add(found)
            report.skipped += [] if why is None else [f"speed against no drafts: {why}"]
            report.checked += ["speed against no drafts"] if why is None else []
    for daemon in asked.daemons:
        report.add(*await _daemon_findings(daemon, seen))
        report.checked.append(f"daemon {daemon}")
    return report


def _reach_findings(seen: Seen) -> Iterator[Finding]:
    if seen.trouble is not None:
        is_access = "--token-file" in seen.trouble or "control scope" in seen.trouble
        code, do = ("access", "name the token's file") if is_access else (
            "unreachable", "is the URL right, is the server up, does a firewall stand between?"
        )  # fmt: skip
        yield error(code, "the server cannot be read", seen.trouble, do)
    if seen.other_contract is not None:
        yield error(
            "contract-differs", "plugin and command are of different versions", seen.other_contract,
            "install the same specctl on both sides",
        )  # fmt: skip
    if seen.why_not_steered is not None:
        yield warning(
            "plugin-not-asked",
            "the plugin is loaded, and the server was started without asking for it",
            seen.why_not_steered,
            'vLLM: add "specctl": {} to --speculative-config; SGLang: set SPECCTL_SGLANG_OPTIONS={}',
        )
    if seen.trouble is None and not seen.is_engine:
        yield error(
            "no-engine", "this is no vLLM or SGLang server", str(seen.metrics_trouble),
            "is the URL right? SGLang serves its metrics with --enable-metrics only",
        )  # fmt: skip
    elif not seen.has_routes and seen.trouble is None:
        yield warning(
            "plugin-not-loaded",
            "the plugin is not loaded: nothing can be steered",
            f"{seen.target}/specctl/v1/capabilities: HTTP 404",
            "install specctl-serving in the engine's environment; VLLM_PLUGINS and SGLANG_PLUGINS, where "
            "they are set, must name specctl; then ask for it in the launch command (specctl doctor COMMAND)",
        )


def _server_findings(seen: Seen) -> Iterator[Finding]:
    if seen.metrics_trouble is not None:
        yield warning(
            "metrics-off",
            "the server serves no metrics of an engine",
            seen.metrics_trouble,
            "SGLang: --enable-metrics; vLLM: leave --disable-log-stats out",
        )
    engine = seen.capabilities.engine if seen.capabilities is not None else "vllm"
    if seen.engine_version is not None and engine in ("vllm", "sglang"):
        reason = untested_reason(engine, seen.engine_version)
        if reason is not None:
            yield warning(
                "engine-untested", "this release was not tested with this specctl", reason,
                "install a tested release, or watch its first hours",
            )  # fmt: skip
    ahead_s = seen.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > CLOCK_S:
        yield warning(
            "clocks-differ",
            "the server's clock and this machine's differ",
            f"the server is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}",
            "run NTP on both: audit log, traces and metrics cannot be put together otherwise; leases do not "
            "depend on it",
        )
    load = None if seen.metrics is None else seen.metrics.load
    used = None if seen.metrics is None else seen.metrics.kv_cache_used_ratio
    if used is not None and used >= KV_FULL_RATIO and load is not None and load.waiting:
        yield warning(
            "kv-cache-full",
            "requests wait for room in the KV cache",
            f"{used:.0%} of the KV cache used, {load.waiting} waiting",
            LADDERS[engine],
        )


def _add_acceptance(report: Report, seen: Seen) -> None:
    found, why = acceptance_findings(seen)
    report.add(*found)
    if why is None:
        report.checked.append("acceptance")
    else:
        report.skipped.append(f"acceptance: {why}")


def _table_findings(seen: Seen) -> Iterator[Finding]:
    table = seen.table
    if table is None:
        return
    owners = {one.owner for one in seen.tables if one.owner and one.state is TableState.LIVE}
    if len(owners) > 1:
        yield error(
            "two-daemons",
            "more than one writer changes the table",
            f"owners within {len(seen.tables)} readings: {', '.join(sorted(owners))}",
            "stop all but one: each undoes what the other decides",
        )
    if table.state is TableState.FALLBACK:
        yield warning(
            "lease-ran-out",
            "the daemon that steered this server is gone",
            f"the fallback holds since {table.age_s:.0f} s; the lease was {table.owner or 'a daemon'}'s",
            "start specctl autotune again, and let a supervisor keep it running",
        )
    if table.ranks_behind:
        yield warning(
            "ranks-behind",
            "data-parallel ranks hold another table",
            f"ranks {', '.join(map(str, table.ranks_behind))}",
            "the next change reaches them; where it does not, restart the server",
        )
    if table.state is TableState.LIVE and table.lease_remaining_s is None and "put back" not in table.reason:
        yield note(
            "table-without-lease",
            "the table stays whatever happens to who set it",
            f"set by {table.owner or 'nobody'} {table.age_s:.0f} s ago, without a lease",
            "specctl autotune takes it over at its next change",
        )


def _plugin_findings(seen: Seen) -> Iterator[Finding]:
    capabilities, after = seen.capabilities, seen.after
    assert capabilities is not None, "checked"
    if not capabilities.controllable:
        yield warning(
            "not-controllable",
            "the table can be read, not changed",
            str(capabilities.why_not_controllable),
            "take a method that can be steered (specctl recommend), or a static number (specctl bench)",
        )
    is_on_gpu = capabilities.gpu is not None and "cpu" not in capabilities.gpu.lower()
    is_ours = capabilities.method.startswith("specctl_")
    if capabilities.engine == "vllm" and is_on_gpu and is_ours and capabilities.has_shadow_acceptance:
        yield warning(
            "runner-v1",
            "vLLM runs Model Runner V1: drafts are found on the host",
            f"{capabilities.gpu}, {capabilities.method} with shadow acceptance, which V2 does not have",
            "leave VLLM_USE_V2_MODEL_RUNNER=0 out",
        )
    if after is not None and after.failures:
        counts = ", ".join(f"{entry} {count:g}" for entry, count in after.failures.items())
        yield warning(
            "plugin-failed",
            "code of the plugin raised in steps of this engine",
            counts,
            "the server's log has the trace; after three failures nothing is drafted",
        )
    for words in capabilities.warnings:
        is_of_sampling = "temperature" in words
        do = "requests with temperature 0 are not affected" if is_of_sampling else "see docs/methods.md"
        yield note("engine-warning", "the server warns", words, do)


def _policy_finding(seen: Seen, policy: AnyPolicy) -> Finding | None:
    """Decides as the daemon would at its first poll with these counters."""
    capabilities, table = seen.capabilities, seen.table
    if capabilities is None or table is None:
        return None
    observation = Observation(
        target=seen.target,
        time_s=0.0,
        capabilities=capabilities,
        applied=table,
        cells=seen.window_cells,
        shadow=seen.window_shadow,
    )
    controller = Controller()
    controller.learn(observation)
    plan = controller.plan(observation, policy)
    blocked = [choice for choice in plan.choices if choice.reason is Reason.NOT_POSSIBLE]
    reason = plan.explanation if plan.reason is Reason.NOT_POSSIBLE or not blocked else blocked[0].detail
    if plan.reason is Reason.NOT_POSSIBLE or blocked:
        legal = ", ".join(map(str, capabilities.num_speculative_tokens_legal))
        return warning(
            "policy-cannot-act",
            f"the policy {policy.name} has nothing to choose from on this server",
            f"{reason}; prepared are {legal} drafts",
            "widen the policy's knobs (specctl policy show), or prepare more settings at the server's start",
        )
    if policy.frozen:
        return note(
            "policy-cannot-act",
            f"the policy {policy.name} is frozen",
            "frozen: true",
            "specctl thaw FILE ends it",
        )
    return None


async def _daemon_findings(daemon: str, seen: Seen) -> Iterator[Finding]:
    from specctl.doctor.daemon_checks import daemon_findings

    return await daemon_findings(daemon, seen)
