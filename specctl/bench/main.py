"""Builds an experiment from the command's options, runs it, prints and saves the result."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from specctl.bench.arms import ArmKind, baseline_of, chosen_arms, parse_arm
from specctl.bench.experiment import Experiment, choose_endpoint
from specctl.bench.intervals import ROUNDS_MIN
from specctl.bench.judged import best_constant, compared, comparisons, figures_of, losses, verdict
from specctl.bench.loads import Load, parse_load, product
from specctl.bench.machine import about_machine, busy_words
from specctl.bench.outputs import check_outputs
from specctl.bench.plan import Measured, Plan
from specctl.bench.results import BenchResult, OutputCheck
from specctl.bench.run_load import Span
from specctl.bench.saved import save
from specctl.bench.sender import Endpoint, Sender, Session
from specctl.bench.servers import Launch, Server, launched, open_server, parse_launch
from specctl.bench.terminal import TerminalProgress, print_result
from specctl.clock import iso_utc
from specctl.errors import BenchArgumentError, BenchInputError
from specctl.http_client import read_token
from specctl.plain_text import counted
from specctl.policy.loader import find_policy, load_policy

__all__ = ["new_runner", "run_bench"]

SECONDS_DEFAULT = 10.0
ROUNDS_DEFAULT, MOST_ROUNDS = 6, 18
PATIENT_SIGNALS = 3
CONCURRENCY_DEFAULT = (1, 8)


def run_bench(options: Mapping[str, Any]) -> BenchResult:
    """Raises SpecctlError. KeyboardInterrupt before the first round is complete."""
    console = Console(stderr=bool(options["as_json"]))
    loads = _loads(options)
    _check_arms(options["arms"] or ())
    warnings: list[str] = []
    with new_runner() as runner:
        try:
            result = runner.run(_interruptible(_run(options, loads, console, warnings)))
        except asyncio.CancelledError as error:
            raise KeyboardInterrupt from error
        # The runner still holds the signals here: another Ctrl-C cannot cut the output.
        print_result(result, console, as_json=options["as_json"], said=warnings)
        if options["save"] is not None:
            console.print(f"saved: {options['save']}/bench.html, bench.md, bench.json", highlight=False)
    return result


def new_runner() -> asyncio.Runner:
    """With uvloop where there is one: it halves what a streamed token costs this process."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _interruptible(work: Coroutine[Any, Any, BenchResult]) -> BenchResult:
    """The first SIGINT or SIGTERM ends the work, which puts tables back; the next two wait for that."""
    task, signals = asyncio.current_task(), itertools.count(1)
    assert task is not None

    def interrupt() -> None:
        number = next(signals)
        if number == 1:
            task.cancel()
        elif number > PATIENT_SIGNALS:
            raise KeyboardInterrupt

    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        # Not in threads, and not on Windows.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(name, interrupt)
    return await work


async def _run(
    options: Mapping[str, Any], loads: tuple[Load, ...], console: Console, warnings: list[str]
) -> BenchResult:
    """``warnings``: gets those that are printed before anything runs."""
    api_key = None if options["api_key_file"] is None else read_token(options["api_key_file"], is_own=False)
    async with _folder(options["save"]) as folder, _servers(options, api_key, folder, console) as servers:
        warnings += [*_warnings(options, servers), *await _busy_servers(servers)]
        for warning in warnings:
            console.print(f"[yellow]warning:[/] {warning}", highlight=False, soft_wrap=True)
        plan = await _plan(options, loads, servers, api_key)
        with TerminalProgress(console) as progress:
            if options["search"]:
                from specctl.bench.search import search

                found = await search(plan, servers, progress, folder, minutes=options["minutes"])
                plan, measured, report = found.plan, found.measured, found.report
            else:
                measured, report = await Experiment(plan, servers, progress, folder).run(), None
        outputs = await _outputs(plan, servers, measured)
        result = _result(options, plan, servers, measured, outputs, warnings, report)
        if options["save"] is not None:
            save(folder, result, plan, servers, measured)
        return result


@asynccontextmanager
async def _folder(save: Path | None) -> AsyncIterator[Path]:
    if save is None:
        with tempfile.TemporaryDirectory(prefix="specctl-bench-") as name:
            yield Path(name)
        return
    try:
        save.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchInputError(f"--save {save}: {error.strerror}") from error
    yield save


@asynccontextmanager
async def _servers(
    options: Mapping[str, Any], api_key: str | None, folder: Path, console: Console
) -> AsyncIterator[list[Server]]:
    token = None if options["token_file"] is None else read_token(options["token_file"])
    targets, names = options["targets"], options["names"]
    if len(names) > len(targets):
        raise BenchArgumentError(f"{counted(len(names), 'name')} for {counted(len(targets), 'target')}")
    launches: dict[int, Launch] = {
        i: parse_launch(target) for i, target in enumerate(targets) if any(map(str.isspace, target))
    }
    doubled = [url for url, count in Counter(one.url for one in launches.values()).items() if count > 1]
    if doubled:
        raise BenchArgumentError(
            f"launch commands with the same port: {', '.join(doubled)} (--port N in each)"
        )
    async with AsyncExitStack() as stack:
        if launches:
            console.print(f"starting {counted(len(launches), 'server')} ...", highlight=False)
        await stack.enter_async_context(launched(list(launches.values()), folder))
        servers = []
        for i, target in enumerate(targets):
            launch = launches.get(i)
            url = target if launch is None else launch.url
            name = names[i] if i < len(names) else ""
            words = None if launch is None else target
            server = await open_server(name, url, token=token, api_key=api_key, launch=words)
            stack.push_async_callback(server.client.close)
            servers.append(server)
        yield servers


def _check_arms(texts: Sequence[str]) -> None:
    """Before a server is started. Raises BenchArgumentError, and PolicyError for an arm's policy."""
    for text in texts:
        policy = parse_arm(text).policy
        if policy is not None:
            load_policy(find_policy(policy))


def _loads(options: Mapping[str, Any]) -> tuple[Load, ...]:
    defaults = {"max_tokens": options["output_tokens"]}
    if options["loads"]:
        loads = tuple(parse_load(text, defaults) for text in options["loads"])
    else:
        is_open = options["rate"] is not None or options["trace"]
        concurrency = options["concurrency"] or (() if is_open else CONCURRENCY_DEFAULT)
        prompts = options["prompts"] or ("chat",)
        loads = product(prompts, concurrency, options["rate"] or (), options["trace"], defaults)
    doubled = [title for title, count in Counter(load.title for load in loads).items() if count > 1]
    if doubled:
        raise BenchArgumentError(f"loads of the same name: {', '.join(doubled)} (name= in --load)")
    return loads


async def _plan(
    options: Mapping[str, Any], loads: tuple[Load, ...], servers: Sequence[Server], api_key: str | None
) -> Plan:
    texts = options["arms"] or (("off",) if options["search"] else ())
    capabilities = [server.capabilities for server in servers]
    arms = chosen_arms(texts, [server.name for server in servers], capabilities, is_search=options["search"])
    endpoint: Endpoint = options["endpoint"]
    if options["endpoint"] == "auto":
        async with Session(api_key) as session:
            endpoint = await choose_endpoint(session, servers[0])
    rounds = options["rounds"] or ROUNDS_DEFAULT
    seconds = options["seconds"] or (None if options["requests"] else SECONDS_DEFAULT)
    return Plan(
        arms=arms,
        baseline=baseline_of(options["baseline"], arms),
        loads=loads,
        rounds=rounds,
        most_rounds=0 if options["rounds"] or options["prompts_once"] or options["search"] else MOST_ROUNDS,
        span=Span(seconds, options["requests"]),
        endpoint=endpoint,
        sampling=options["sampling"],
        ignore_eos=options["ignore_eos"],
        outputs=options["outputs"],
        numbers_prompts=not options["as_they_are"],
        prompts_once=options["prompts_once"],
        warm_up=not options["no_warm_up"],
        api_key=api_key,
        token_file=options["token_file"],
        seed=options["seed"],
    )


def _warnings(options: Mapping[str, Any], servers: Sequence[Server]) -> list[str]:
    found = []
    if busy := busy_words([server.url for server in servers]):
        found.append(busy)
    if options["rounds"] and options["rounds"] < ROUNDS_MIN:
        rounds = counted(options["rounds"], "round")
        found.append(f"no interval from {rounds}: at least {ROUNDS_MIN} are needed")
    for server in servers:
        capabilities = server.capabilities
        if capabilities is not None and capabilities.drafts_from_outputs and not options["prompts_once"]:
            found.append(
                f"{server.name}: {capabilities.method} drafts from outputs of earlier requests, and prompts "
                "come again in other rounds: its speed is that of repeated traffic (--prompts-once, or a "
                "server started with use_global false, avoids it)"
            )
    return found


async def _busy_servers(servers: Sequence[Server]) -> list[str]:
    """Warnings where a server runs requests of others. A stock server is not asked."""
    found = []
    for server in servers:
        if server.capabilities is not None:
            telemetry = await server.client.telemetry()
            if others := telemetry.running + telemetry.waiting:
                found.append(f"{server.name}: requests of others run there ({others})")
    return found


async def _outputs(plan: Plan, servers: Sequence[Server], measured: Measured) -> tuple[OutputCheck, ...]:
    theirs = measured.outputs.get(plan.baseline)
    if theirs is None:
        return ()
    server = servers[next(arm.server for arm in plan.arms if arm.name == plan.baseline)]
    dtype = next((s.capabilities.dtype for s in servers if s.capabilities and s.capabilities.dtype), None)
    async with Session(plan.api_key) as session:
        judge = Sender(session, server.url, server.model, "completions", 1)
        return tuple(
            [
                await check_outputs(arm.name, plan.baseline, measured.outputs[arm.name], theirs, judge, dtype)
                for arm in plan.arms
                if arm.name != plan.baseline and arm.name in measured.outputs
            ]
        )


def _result(
    options: Mapping[str, Any],
    plan: Plan,
    servers: Sequence[Server],
    measured: Measured,
    outputs: tuple[OutputCheck, ...],
    warnings: list[str],
    search: dict[str, Any] | None,
) -> BenchResult:
    runs = measured.runs
    best = best_constant(plan.arms, runs)
    ours = next((arm.name for arm in plan.arms if arm.kind is ArmKind.AUTOTUNE), None)
    against = None if ours is None or best is None else compared(runs, ours, best, None)
    failed = sum(run.failed for run in runs)
    if failed:
        errors = Counter(error for run in runs for error in run.errors)
        warnings = [*warnings, f"{counted(failed, 'request')} failed: {errors.most_common(1)[0][0]}"]
    warnings = [*warnings, *measured.warnings]
    if measured.is_cut_short:
        warnings = [*warnings, f"stopped by hand after {counted(measured.rounds, 'round')}"]
    words = verdict(plan.arms, plan.baseline, runs)
    return BenchResult(
        command=options["command"],
        utc=iso_utc(datetime.now(UTC)),
        machine=about_machine(),
        servers=tuple(server.about() for server in servers),
        warnings=tuple(warnings),
        arms=plan.arms,
        baseline=plan.baseline,
        loads=plan.loads,
        rounds=measured.rounds,
        runs=tuple(runs),
        figures=figures_of(plan, measured, options["price_per_hour"]),
        comparisons=comparisons(plan, runs),
        outputs=outputs,
        tables=tuple(measured.tables),
        best_constant=best,
        against_best_constant=against,
        verdict=words if search is None else search["verdict"],
        losses=losses(plan.arms, runs),
        is_cut_short=measured.is_cut_short,
        price_per_hour=options["price_per_hour"],
        search=search,
    )
