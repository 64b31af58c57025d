"""What this plugin relies on inside vLLM, checked in the source before anything is changed.

Sources are parsed, not imported: the check costs no engine start and works on an unpacked wheel.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["RELIED_ON", "Seam", "missing_seams"]


@dataclass(frozen=True)
class Seam:
    """A function or method with the leading parameters that are passed by position or name."""

    module: str
    qualname: str
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}({', '.join(self.parameters)})"


_SCHEDULER = "vllm.v1.core.sched.scheduler"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"
_NGRAM_V2 = "vllm.v1.worker.gpu.spec_decode.ngram.speculator"

RELIED_ON: tuple[Seam, ...] = (
    Seam("vllm.engine.arg_utils", "EngineArgs.create_speculative_config", ("self",)),
    Seam("vllm.plugins", "load_endpoint_plugins", ("supported_tasks",)),
    Seam("vllm.config.scheduler", "SchedulerConfig.get_scheduler_cls", ("self",)),
    Seam("vllm.v1.engine.core", "EngineCore.step", ("self",)),
    Seam("vllm.v1.engine.core", "EngineCore.post_step", ("self", "model_executed")),
    Seam("vllm.v1.engine.core_client", "AsyncMPClient.call_utility_async", ("self", "method")),
    Seam(_SCHEDULER, "Scheduler.schedule", ("self",)),
    Seam(_SCHEDULER, "Scheduler._update_after_schedule", ("self", "scheduler_output")),
    Seam(
        _SCHEDULER,
        "Scheduler.update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
    ),
    Seam(_SCHEDULER, "Scheduler.update_draft_token_ids", ("self", "draft_token_ids")),
    Seam("vllm.v1.core.sched.output", "SchedulerOutput.num_spec_tokens_to_schedule"),
    Seam("vllm.v1.core.sched.output", "SchedulerOutput.scheduled_spec_decode_tokens"),
    Seam("vllm.v1.core.sched.output", "SchedulerOutput.finished_req_ids"),
    Seam("vllm.v1.core.sched.output", "SchedulerOutput.scheduled_new_reqs"),
    Seam("vllm.v1.request", "Request.num_output_tokens", ("self",)),
    Seam("vllm.v1.outputs", "DraftTokenIds.draft_token_ids"),
    Seam("vllm.v1.worker.worker_base", "WorkerBase.__init__", ("self", "vllm_config")),
    Seam(_RUNNER, "GPUModelRunner.execute_model", ("self", "scheduler_output")),
    Seam(_RUNNER, "GPUModelRunner.sample_tokens", ("self", "grammar_output")),
    Seam(_RUNNER, "GPUModelRunner.take_draft_token_ids", ("self",)),
    Seam(
        _RUNNER,
        "GPUModelRunner.propose_draft_token_ids",
        ("self", "scheduler_output", "sampled_token_ids"),
    ),
    Seam(_SCHEDULER, "Scheduler._free_request", ("self", "request")),
    Seam(_RUNNER_V2, "GPUModelRunner.execute_model", ("self", "scheduler_output")),
    Seam("vllm.v1.worker.gpu.spec_decode", "init_speculator", ("vllm_config", "device", "req_states")),
    Seam(
        "vllm.v1.worker.gpu.spec_decode.speculator",
        "BaseSpeculator.propose",
        (
            "self",
            "input_batch",
            "attn_metadata",
            "slot_mappings",
            "last_hidden_states",
            "aux_hidden_states",
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "next_prefill_tokens",
            "temperature",
            "seeds",
            "dp_sync_state",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "mm_inputs",
            "is_profile",
            "num_speculative_tokens",
        ),
    ),
    Seam(
        "vllm.v1.spec_decode.dynamic.utils",
        "build_dynamic_sd_schedule_lookup",
        ("num_speculative_tokens_per_batch_size", "vllm_max_batch_size", "vllm_num_speculative_tokens"),
    ),
    Seam("vllm.v1.worker.gpu.cudagraph_utils", "CudaGraphManager._init_candidates", ("self",)),
    Seam(_NGRAM_V2, "NgramGPUSpeculator.propose", ("self", "input_batch")),
    Seam("vllm.v1.worker.gpu.states", "RequestState.__init__", ("self", "max_num_reqs", "max_model_len")),
    Seam("vllm.v1.spec_decode.suffix_decoding", "SuffixDecodingProposer.propose", ("self",)),
)


def missing_seams(root: Path | None = None, seams: tuple[Seam, ...] = RELIED_ON) -> list[str]:
    """One sentence for each seam that is not as expected; empty when all is well.

    root: the folder that holds the package ``vllm``; None: the installed one.
    """
    return [problem for seam in seams if (problem := _problem(seam, root)) is not None]


def _problem(seam: Seam, root: Path | None) -> str | None:
    try:
        source = _source(seam.module, root)
        if source is None:
            return f"{seam}: module {seam.module} not found"
        node: ast.AST = _parsed(source)
    except (OSError, SyntaxError) as error:
        return f"{seam}: {seam.module} cannot be read ({error})"
    for name in seam.qualname.split("."):
        found = _member(node, name)
        if found is None:
            return f"{seam}: {name} not found"
        node = found
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None if not seam.parameters else f"{seam}: not a function"
    got = tuple(arg.arg for arg in (*node.args.posonlyargs, *node.args.args))
    if got[: len(seam.parameters)] != seam.parameters:
        return f"{seam}: got parameters ({', '.join(got)})"
    return None


def _source(module: str, root: Path | None) -> Path | None:
    if root is not None:
        base = root.joinpath(*module.split("."))
        candidates = [base.with_suffix(".py"), base / "__init__.py"]
        return next((path for path in candidates if path.is_file()), None)
    package = importlib.util.find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        return None
    return _source(module, Path(package.submodule_search_locations[0]).parent)


@lru_cache(maxsize=32)
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _member(node: ast.AST, name: str) -> ast.AST | None:
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            return child
        if (
            isinstance(child, ast.AnnAssign)
            and isinstance(child.target, ast.Name)
            and child.target.id == name
        ):
            return child
    return None
