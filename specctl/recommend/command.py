"""``specctl recommend MODEL | TARGET``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from specctl.checkpoints.config import CheckpointError
from specctl.checkpoints.draft import Draft, read_draft
from specctl.checkpoints.facts import ModelFacts, read_facts
from specctl.cli.options import FILE, token_file_option
from specctl.doctor.command import memory_size
from specctl.doctor.launch_checks import gpu_memory_bytes
from specctl.recommend.guide import ENGINES, Guide, guide
from specctl.recommend.launch import Machine
from specctl.recommend.ranking import Candidate, Request, ranked
from specctl.recommend.words import described
from specctl.recommend.workload import Workload
from specctl.terminal import FiniteRange, examples, json_option, print_json, progress

__all__ = ["recommend"]

ACCEPTANCE_FLOOR = 0.5
CONCURRENCY_DEFAULT = 16
WORKLOADS = (
    "chat", "code", "agent", "sql", "rag", "summarise", "reasoning", "translate", "embedding",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    notes: list[str]
    acceptance: float | None


@click.command(
    epilog=examples(
        "specctl recommend ./Llama-3.1-8B-Instruct --workload chat --concurrency 32 --gpu-memory 80G",
        "specctl recommend ./Llama-3.1-8B-Instruct --draft ./heads --engine vllm",
        "specctl recommend http://localhost:8000 --log load.jsonl --engine-profile gpu.yaml",
        "specctl recommend ./Qwen3-8B --workload agent --json | jq -r '.ranked[0].command'",
    )
)
@click.argument("subject", metavar="MODEL | TARGET")
@click.option("--engine", type=click.Choice(ENGINES), help="default: both; of a server its own")
@click.option("--draft", "drafts", multiple=True, type=FILE, metavar="FOLDER",
              help="a draft head or draft model, or a folder of such folders; repeat")  # fmt: skip
@click.option(
    "--workload", type=click.Choice(WORKLOADS), default="chat", help="kind of traffic; default: chat"
)
@click.option("--concurrency", type=click.IntRange(1), metavar="N",
              help=f"requests at once; default: {CONCURRENCY_DEFAULT}, of a server what it runs")  # fmt: skip
@click.option("--output-tokens", type=click.IntRange(1), metavar="N", help="tokens of a usual answer")
@click.option("--context", type=click.IntRange(1), metavar="N", help="longest prompt and answer, in tokens")
@click.option("--temperature", type=FiniteRange(0), metavar="T", help="temperature of a usual request")
@click.option(
    "--gpu-memory",
    type=memory_size,
    metavar="SIZE",
    help="memory of one GPU, such as 80G; default: this machine's",
)
@click.option(
    "--gpus", type=click.IntRange(1), default=1, metavar="N", help="GPUs that share the model; default: 1"
)
@click.option(
    "--model-folder", type=FILE, metavar="FOLDER", help="with TARGET: folder of its model, for the sizes"
)
@click.option("--cpu", is_flag=True, help="serve without a GPU")
@click.option(
    "--engine-version", metavar="VERSION", help="release of the engine, where it is not installed here"
)
@click.option("--log", type=FILE, metavar="FILE", help="log of specctl record, whose load is simulated too")
@click.option(
    "--engine-profile", metavar="FILE", help="with --log: step costs, as specctl profile writes them"
)
@click.option(
    "--top", type=click.IntRange(1), default=5, metavar="N", help="methods shown in full; default: 5"
)
@token_file_option("read")
@json_option()
def recommend(subject: str, **given: Any) -> int:
    """Rank the methods that fit a model and its traffic, each with its exact launch command.

    MODEL is a folder, or a name on a hub (of which no sizes are known: no network is used). TARGET is the URL
    of a running server, whose model, engine, load and acceptance are read. The order follows published guides
    and measurements, which are named; specctl bench measures yours.
    """
    if (given["log"] is None) != (given["engine_profile"] is None):
        raise click.UsageError("--log and --engine-profile go together (specctl profile makes one)")
    rules = guide()
    with progress("reading model folders"):
        asked = _asked(subject, given)
        found = ranked(asked.request, rules)
    simulated = _simulated(given)
    training = _training(asked, found, rules)
    if given["as_json"]:
        print_json(_as_json(asked, found, simulated, training))
    else:
        click.echo("\n".join(described(asked.request, asked.notes, found, given["top"], simulated, training)))
    return 0


def _asked(subject: str, given: dict[str, Any]) -> _Asked:
    """Raises CheckpointError for a folder that holds no model, TargetError for a server that is not there."""
    drafts = tuple(_drafts(given["drafts"]))
    workload = Workload(
        kind=given["workload"],
        concurrency=given["concurrency"] or CONCURRENCY_DEFAULT,
        output_tokens=given["output_tokens"],
        context_tokens=given["context"],
        temperature=given["temperature"],
        on_cpu=given["cpu"],
    )
    is_here = not given["cpu"] and "://" not in subject
    machine = Machine(
        gpus=given["gpus"],
        gpu_memory_bytes=given["gpu_memory"] or (gpu_memory_bytes() if is_here else None),
        on_cpu=given["cpu"],
        engine_version=given["engine_version"],
    )
    engines = ENGINES if given["engine"] is None else (given["engine"],)
    request = Request(
        model=subject, target=None, drafts=drafts, engines=engines, workload=workload, machine=machine
    )
    if "://" in subject:
        return _of_server(subject, request, given)
    notes = []
    if not Path(subject).is_dir():
        if subject.startswith(("/", "./", "../", "~")):
            raise CheckpointError(f"{subject}: expected a model folder, found none")
        notes.append(f"{subject} is no folder here: its sizes, its memory and what fits it are not checked")
    return _Asked(replace(request, target=_facts(subject)), notes, None)


def _of_server(url: str, request: Request, given: dict[str, Any]) -> _Asked:
    from specctl.http_client import normalise_target, read_token
    from specctl.recommend.server import read_server

    token = None if given["token_file"] is None else read_token(given["token_file"])
    running = asyncio.run(read_server(normalise_target(url), token))
    folder = given["model_folder"]
    model = str(folder) if folder is not None else running.model or "MODEL"
    notes = [
        f"{url}: {running.engine or 'an engine'} {running.engine_version or ''}, model {model}, method "
        f"{running.method or 'unknown (no plugin)'}, "
        + (
            "acceptance of the first draft token not known"
            if running.acceptance is None
            else f"{running.acceptance:.0%} of the first draft tokens accepted"
        )
    ]
    workload = replace(
        request.workload,
        concurrency=given["concurrency"] or running.running or CONCURRENCY_DEFAULT,
        acceptance=running.acceptance,
        present_method=running.method,
        on_cpu=given["cpu"] or running.on_cpu,
    )
    machine = replace(
        request.machine,
        on_cpu=workload.on_cpu,
        engine_version=request.machine.engine_version or running.engine_version,
        requests_max=running.requests_max,
    )
    engines = request.engines
    if given["engine"] is None and running.engine in ENGINES:
        engines = (running.engine,)
    asked = replace(
        request, model=model, target=_facts(model), workload=workload, machine=machine, engines=engines
    )
    return _Asked(asked, notes, running.acceptance)


def _facts(model: str) -> ModelFacts | None:
    return read_facts(Path(model)) if Path(model).is_dir() else None


def _drafts(folders: Sequence[Path]) -> list[Draft]:
    """Each folder's, and those of the folders inside one that is none itself. Raises CheckpointError."""
    found: list[Draft] = []
    for folder in folders:
        if (folder / "config.json").is_file() or not folder.is_dir():
            found.append(read_draft(folder))
            continue
        inside = [path for path in sorted(folder.iterdir()) if (path / "config.json").is_file()]
        if not inside:
            raise CheckpointError(f"{folder}: expected a draft or a folder of drafts, found no config.json")
        found += [read_draft(path) for path in inside]
    return found


def _simulated(given: dict[str, Any]) -> dict[str, Any] | None:
    if given["log"] is None:
        return None
    from specctl.recommend.log import simulated

    with progress(f"simulating {given['log']}"):
        return simulated(given["log"], given["engine_profile"])


def _training(asked: _Asked, found: list[Candidate], rules: Guide) -> dict[str, Any] | None:
    """Where the server's head is weak, or no head is there that could lead."""
    is_weak = asked.acceptance is not None and asked.acceptance < ACCEPTANCE_FLOOR
    heads = [one for one in found if one.method.family in ("head", "parallel_head", "hybrid")]
    lacks = (
        bool(heads) and not any(one.can_start for one in heads) and asked.request.workload.kind != "embedding"
    )
    if not is_weak and not lacks:
        return None
    why = rules.training.why
    if is_weak:
        why = f"The present drafts' first token is accepted {asked.acceptance:.0%} of the time. {why}"
    return {
        "why": why,
        "steps": [step.replace("{model}", asked.request.model) for step in rules.training.steps],
        "sources": [rules.sources[name].url for name in rules.training.sources],
    }


def _as_json(
    asked: _Asked,
    found: list[Candidate],
    simulated: dict[str, Any] | None,
    training: dict[str, Any] | None,
) -> dict[str, Any]:
    request = asked.request
    work = request.workload
    return {
        "model": request.model,
        "workload": {name: getattr(work, name) for name in work.__slots__},
        "notes": asked.notes,
        "ranked": [one.as_json(request.machine) for one in found if one.can_start],
        "not_now": [one.as_json(request.machine) for one in found if not one.can_start],
        "log": simulated,
        "training": training,
    }
