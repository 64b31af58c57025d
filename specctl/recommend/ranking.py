"""Methods that fit a model, ranked, each with its launch command, its memory and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specctl.checkpoints.draft import Draft, Kind, misfits
from specctl.checkpoints.facts import ModelFacts
from specctl.checkpoints.memory import GIB, Memory, estimate
from specctl.doctor.finding import Severity
from specctl.doctor.launch_checks import Given, examine_launch
from specctl.doctor.launch_line import parse_launch
from specctl.doctor.launch_sglang import SglangLaunch
from specctl.doctor.launch_vllm import VllmLaunch
from specctl.recommend.guide import Engine, Guide, Method
from specctl.recommend.launch import Machine, launch_words, shell_line
from specctl.recommend.workload import Workload, score_of

__all__ = ["Candidate", "Request", "ranked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """``model``: as it stands in the command; ``target`` None: its sizes are not known here."""

    model: str
    target: ModelFacts | None
    drafts: tuple[Draft, ...]
    engines: tuple[Engine, ...]
    workload: Workload
    machine: Machine


@dataclass(slots=True)
class Candidate:
    """``missing``: why it cannot be started as it stands; None: it can."""

    method: Method
    points: float
    reasons: list[str]
    command: list[str]
    draft: Path | None
    num_speculative_tokens: int
    memory: Memory | None = None
    missing: str | None = None
    problems: list[str] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)

    @property
    def can_start(self) -> bool:
        return self.missing is None and not self.problems

    def as_json(self, machine: Machine) -> dict[str, Any]:
        memory = None if self.memory is None else _memory_json(self.memory, machine)
        return {
            "method": self.method.id,
            "engine": self.method.engine,
            "points": round(self.points, 2),
            "reasons": self.reasons,
            "command": shell_line(self.command),
            "draft": None if self.draft is None else str(self.draft),
            "num_speculative_tokens": self.num_speculative_tokens,
            "memory": memory,
            "missing": self.missing,
            "problems": self.problems,
            "cannot": self.cannot,
        }


def ranked(request: Request, guide: Guide) -> list[Candidate]:
    """Those that can be started first, then those that lack something; each by their points. At equal points
    the method that runs comes first, and none last."""
    found = [
        candidate
        for method in guide.methods
        if method.engine in request.engines and _device(request.machine) in method.devices
        for candidate in _candidates(method, request, guide)
    ]
    present = request.workload.present_method
    return sorted(
        found,
        key=lambda one: (
            not one.can_start,
            -one.points,
            one.method.id != present,
            one.method.is_none,
        ),
    )


def _device(machine: Machine) -> str:
    return "cpu" if machine.on_cpu else "gpu"


def _candidates(method: Method, request: Request, guide: Guide) -> Iterable[Candidate]:
    """One for each draft of its kind; one that lacks a draft where there is none."""
    score = score_of(method, request.workload, guide)
    reasons = [_with_sources(words, names, guide) for words, names in score.reasons]
    if method.draft is Kind.MTP:
        missing = None
        if request.target is None:
            missing = "whether the model has MTP layers is not known: name its folder"
        elif not request.target.mtp_layers:
            missing = "the model has no MTP layers"
        choices: Sequence[tuple[Draft | None, str | None]] = [(None, missing)]
    elif method.draft is None:
        choices = [(None, None)]
    else:
        own = None if request.target is None else request.target.folder.resolve()
        others = [draft for draft in request.drafts if draft.facts.folder.resolve() != own]
        choices = [(draft, None) for draft in others if _fits_engine(draft, method)]
        choices = choices or [(None, _no_draft(method))]
    for draft, missing in choices:
        yield _candidate(method, draft, missing, score.points, reasons, request, guide)


def _fits_engine(draft: Draft, method: Method) -> bool:
    is_foreign = method.engine == "sglang" and draft.is_speculators_format and draft.kind is not Kind.PEAGLE
    return draft.kind is method.draft and not is_foreign


def _no_draft(method: Method) -> str:
    names = {
        Kind.EAGLE: "an EAGLE head",
        Kind.EAGLE3: "an EAGLE-3 head",
        Kind.PEAGLE: "a P-EAGLE head",
        Kind.DFLASH: "a DFlash head",
        Kind.LANGUAGE_MODEL: "a small model with the same tokenizer",
    }
    assert method.draft is not None, "checked"
    return f"no {names[method.draft].partition(' ')[2]} was named: --draft FOLDER"


def _with_sources(words: str, names: Sequence[str], guide: Guide) -> str:
    return f"{words} [{', '.join(guide.sources[name].url for name in names)}]"


def _candidate(
    method: Method,
    draft: Draft | None,
    missing: str | None,
    points: float,
    reasons: list[str],
    request: Request,
    guide: Guide,
) -> Candidate:
    workload, machine = request.workload, request.machine
    drafts = guide.drafts_for(method.family, workload.concurrency)
    if method.drafts_max is not None:
        drafts = min(drafts, method.drafts_max)
    if draft is not None and draft.trained_tokens is not None:
        drafts = min(drafts, draft.trained_tokens)
    folder = None if draft is None else draft.facts.folder
    named = folder if folder is not None else Path("DRAFT") if method.draft is not None else None
    command = launch_words(
        method,
        request.model,
        named,
        drafts=drafts,
        concurrency=workload.concurrency,
        context_tokens=workload.context_tokens,
        machine=machine,
    )
    made = Candidate(method, points, reasons, command, folder, drafts, missing=missing)
    made.cannot = list(method.cannot)
    if draft is not None and request.target is not None:
        made.problems += [misfit.words for misfit in misfits(draft, request.target)]
    _examine(made, draft, request)
    return made


def _examine(made: Candidate, draft: Draft | None, request: Request) -> None:
    """Memory, and whatever doctor finds in the command."""
    machine = request.machine
    launch = parse_launch(made.command)
    if request.target is not None:
        read: SglangLaunch | VllmLaunch = (
            SglangLaunch(launch, request.target)
            if made.method.engine == "sglang"
            else VllmLaunch(launch, request.target, machine.on_cpu, machine.gpu_memory_bytes)
        )
        made.memory = estimate(request.target, draft, read.memory_plan())
    if made.missing is not None:
        return
    given = Given(machine.gpu_memory_bytes, machine.engine_version, machine.on_cpu)
    for finding in examine_launch(launch, given, "").findings:
        if finding.severity is Severity.ERROR and finding.code != "plugin-not-installed":
            words = f"{finding.what}: {finding.seen}"
            made.problems += [] if any(seen in words for seen in made.problems) else [words]
        elif finding.severity is Severity.WARNING and finding.code not in ("runner-v1", "metrics-off"):
            made.cannot.append(f"{finding.what} ({finding.do})")


def _memory_json(memory: Memory, machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = {
        "parts_gib": {name: round(size / GIB, 3) for name, size in memory.fixed.items()},
        "kv_bytes_per_token": memory.kv_token_bytes,
        "not_known": list(memory.unknown),
    }
    if machine.gpu_memory_bytes is not None:
        found["kv_tokens_that_fit"] = memory.tokens_within(machine.gpu_memory_bytes * 0.9)
    return found
