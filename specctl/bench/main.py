"""Builds an experiment from the command's options, runs it, prints and saves the result."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from specctl.bench.arms import Arm, ArmKind, chosen_arms
from specctl.bench.experiment import Experiment, Measured, Plan, choose_endpoint
from specctl.bench.figures import Samples, arm_figures
from specctl.bench.interchange import read_runs, sglang_line, vllm_result
from specctl.bench.intervals import ROUNDS_MIN
from specctl.bench.judged import best_constant, compared, comparisons, figures_of, losses, verdict
from specctl.bench.loads import Load, parse_load, product
from specctl.bench.machine import about_machine, busy_words
from specctl.bench.outputs import check_outputs
from specctl.bench.page import page
from specctl.bench.results import BenchResult, OutputCheck, Run
from specctl.bench.run_load import Span
from specctl.bench.sender import Endpoint, Sender, open_session
from specctl.bench.servers import Launch, Server, launched, open_server, parse_launch
from specctl.bench.terminal import TerminalProgress, print_result
from specctl.bench.words import markdown
from specctl.clock import iso_utc
from specctl.errors import BenchInputError
from specctl.http_client import read_token

__all__ = ["new_runner", "run_bench", "run_files"]

SECONDS_DEFAULT = 10.0
CONCURRENCY_DEFAULT = (1, 8)
_LEARNS_OUTPUTS = ("suffix",)
"""Methods that draft from the outputs of earlier requests."""


def run_bench(options: Mapping[str, Any]) -> BenchResult:
    """Raises SpecctlError. KeyboardInterrupt before the first round is complete."""
    console = Console(stderr=bool(options["as_json"]))
    loads = _loads(options)
    with new_runner() as runner:
        result = runner.run(_run(options, loads, console))
    print_result(result, console)
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


async def _run(options: Mapping[str, Any], loads: tuple[Load, ...], console: Console) -> BenchResult:
    token = None if options["token_file"] is None else read_token(options["token_file"])
    async with _folder(options["save"]) as folder, _servers(options, token, folder, console) as servers:
        api_key = (
            None if options["api_key_file"] is None else read_token(options["api_key_file"], is_own=False)
        )
        warnings = _warnings(options, servers, loads)
        for warning in warnings:
            console.print(f"[yellow]warning:[/] {warning}", highlight=False, soft_wrap=True)
        plan = await _plan(options, loads, servers, api_key)
        with TerminalProgress(console) as progress:
            if options["search"]:
                from specctl.bench.search import search

                found = await search(plan, servers, progress, folder, minutes=options["minutes"])
                plan, measured, told = found.plan, found.measured, found.told
            else:
                measured, told = await Experiment(plan, servers, progress, folder).run(), None
        outputs = await _outputs(plan, servers, measured)
        result = _result(options, plan, servers, measured, outputs, warnings, told)
        if options["save"] is not None:
            _save(folder, result, plan, servers, measured)
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
    options: Mapping[str, Any], token: str | None, folder: Path, console: Console
) -> AsyncIterator[list[Server]]:
    targets, names = options["targets"], options["names"]
    if len(names) > len(targets):
        raise BenchInputError(f"{len(names)} names for {len(targets)} targets")
    launches: dict[int, Launch] = {
        i: parse_launch(target) for i, target in enumerate(targets) if any(map(str.isspace, target))
    }
    doubled = [url for url, count in Counter(one.url for one in launches.values()).items() if count > 1]
    if doubled:
        raise BenchInputError(f"launch commands with the same port: {', '.join(doubled)} (--port N in each)")
    async with AsyncExitStack() as stack:
        if launches:
            console.print(f"starting {len(launches)} server(s) ...", highlight=False)
        await stack.enter_async_context(launched(list(launches.values()), folder))
        servers = []
        for i, target in enumerate(targets):
            launch = launches.get(i)
            url = target if launch is None else launch.url
            name = names[i] if i < len(names) else ""
            server = await open_server(name, url, token=token, launch=None if launch is None else target)
            stack.push_async_callback(server.client.close)
            servers.append(server)
        yield servers


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
        raise BenchInputError(f"loads of the same name: {', '.join(doubled)} (name= in --load)")
    return loads


async def _plan(
    options: Mapping[str, Any], loads: tuple[Load, ...], servers: Sequence[Server], api_key: str | None
) -> Plan:
    texts = options["arms"] or (("off",) if options["search"] else ())
    told = [server.capabilities for server in servers]
    arms = chosen_arms(texts, [server.name for server in servers], told, is_search=options["search"])
    baseline = options["baseline"] or arms[0].name
    if baseline not in {arm.name for arm in arms}:
        raise BenchInputError(f"--baseline {baseline}: expected one of {', '.join(arm.name for arm in arms)}")
    endpoint: Endpoint = options["endpoint"]
    if options["endpoint"] == "auto":
        async with open_session(api_key) as session:
            endpoint = await choose_endpoint(session, servers[0])
    seconds = options["seconds"] or (None if options["requests"] else SECONDS_DEFAULT)
    return Plan(
        arms=arms,
        baseline=baseline,
        loads=loads,
        rounds=options["rounds"],
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


def _warnings(options: Mapping[str, Any], servers: Sequence[Server], loads: Sequence[Load]) -> list[str]:
    found = []
    if busy := busy_words([server.url for server in servers]):
        found.append(busy)
    if options["rounds"] < ROUNDS_MIN:
        found.append(f"{options['rounds']} rounds give no interval: at least {ROUNDS_MIN} are needed")
    for server in servers:
        method = "" if server.capabilities is None else server.capabilities.method.lower()
        if any(word in method for word in _LEARNS_OUTPUTS) and not options["prompts_once"]:
            found.append(
                f"{server.name}: {method} drafts from outputs of earlier requests, and prompts come again in "
                "other rounds: its speed is that of repeated traffic (--prompts-once, or a server started "
                "with use_global false, avoids it)"
            )
    return found


async def _outputs(plan: Plan, servers: Sequence[Server], measured: Measured) -> tuple[OutputCheck, ...]:
    theirs = measured.outputs.get(plan.baseline)
    if theirs is None:
        return ()
    server = servers[next(arm.server for arm in plan.arms if arm.name == plan.baseline)]
    dtype = next((s.capabilities.dtype for s in servers if s.capabilities and s.capabilities.dtype), None)
    async with open_session(plan.api_key) as session:
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
    told: dict[str, Any] | None,
) -> BenchResult:
    runs = measured.runs
    best = best_constant(plan.arms, runs)
    ours = next((arm.name for arm in plan.arms if arm.kind is ArmKind.AUTOTUNE), None)
    against = None if ours is None or best is None else compared(runs, ours, best, None)
    failed = sum(run.failed for run in runs)
    if failed:
        errors = Counter(error for run in runs for error in run.errors)
        warnings = [*warnings, f"{failed} requests failed: {errors.most_common(1)[0][0]}"]
    if measured.is_cut_short:
        warnings = [*warnings, f"stopped by hand after {measured.rounds} rounds"]
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
        verdict=words if told is None else told["verdict"],
        losses=losses(plan.arms, runs),
        is_cut_short=measured.is_cut_short,
        price_per_hour=options["price_per_hour"],
        search=told,
    )


def _save(
    folder: Path, result: BenchResult, plan: Plan, servers: Sequence[Server], measured: Measured
) -> None:
    try:
        (folder / "bench.json").write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (folder / "bench.md").write_text(markdown(result), encoding="utf-8")
        (folder / "bench.html").write_text(page(result), encoding="utf-8")
        _save_others(folder, plan, servers, measured)
    except OSError as error:
        raise BenchInputError(f"--save {folder}: {error.strerror}") from error


def _save_others(folder: Path, plan: Plan, servers: Sequence[Server], measured: Measured) -> None:
    """The last round as files of vLLM's and SGLang's own benchmarks."""
    loads = {load.title: load for load in plan.loads}
    models = {arm.name: servers[arm.server].model for arm in plan.arms}
    last = {(run.arm, run.load): run for run in measured.runs}
    lines = []
    for (arm, title), run in measured.records.items():
        acceptance = last[arm, title].acceptance
        at_once = loads[title].concurrency
        vllm = vllm_result(run, acceptance, model=models[arm], backend=plan.endpoint, concurrency=at_once)
        name = "".join(c if c.isalnum() else "-" for c in f"{arm}-{title}")
        (folder / f"vllm-{name}.json").write_text(json.dumps(vllm) + "\n", encoding="utf-8")
        line = sglang_line(run, acceptance, backend=plan.endpoint, concurrency=at_once)
        lines.append(json.dumps({"tag": f"{arm}: {title}", **line}) + "\n")
    (folder / "sglang.jsonl").write_text("".join(lines), encoding="utf-8")


def run_files(options: Mapping[str, Any]) -> BenchResult:
    """Compares result files of other tools. Raises BenchInputError."""
    console = Console(stderr=bool(options["as_json"]))
    runs: list[Run] = []
    for text in options["from_files"]:
        name, is_given, path = text.partition("=")
        if not is_given or not name:
            raise BenchInputError(f"--from {text!r}: expected ARM=FILE")
        runs += read_runs(Path(path), name, first_round=sum(run.arm == name for run in runs))
    counts = Counter(run.arm for run in runs)
    if len(counts) < 2:
        raise BenchInputError(f"--from: one arm ({', '.join(counts)}) is no comparison")
    rounds = min(counts.values())
    runs = [run for run in runs if run.round < rounds]
    arms = tuple(Arm(name=name, kind=ArmKind.AS_IS) for name in counts)
    baseline = options["baseline"] or arms[0].name
    if baseline not in counts:
        raise BenchInputError(f"--baseline {baseline}: expected one of {', '.join(counts)}")
    load = Load(prompts="file", concurrency=1, name="file")
    plan = Plan(arms, baseline, (load,), rounds, Span(), "completions")
    figures = [
        arm_figures(
            arm.name,
            "file",
            [run for run in runs if run.arm == arm.name],
            Samples(),
            options["price_per_hour"],
        )
        for arm in arms
    ]
    last = {run.arm: run for run in runs}
    known = ("ttft", "tpot", "itl", "e2el")
    figures = [
        one.model_copy(update={name: getattr(last[one.arm], name) for name in known}) for one in figures
    ]
    more = [
        f"{name}: {count - rounds} files without a partner"
        for name, count in counts.items()
        if count > rounds
    ]
    result = BenchResult(
        command=options["command"],
        utc=iso_utc(datetime.now(UTC)),
        machine=about_machine(),
        servers=(),
        warnings=tuple(more),
        arms=arms,
        baseline=baseline,
        loads=(load,),
        rounds=rounds,
        runs=tuple(runs),
        figures=tuple(figures),
        comparisons=comparisons(plan, runs),
        verdict=verdict(arms, baseline, runs),
        price_per_hour=options["price_per_hour"],
    )
    print_result(result, console)
    if options["save"] is not None:
        options["save"].mkdir(parents=True, exist_ok=True)
        _save(options["save"], result, plan, (), Measured())
    return result
