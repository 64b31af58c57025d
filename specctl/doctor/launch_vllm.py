"""A launch command of vLLM: its speculative config, its graphs, its model runner."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specctl.checkpoints.draft import Draft
from specctl.checkpoints.facts import ModelFacts
from specctl.checkpoints.memory import Plan
from specctl.doctor.draft_checks import draft_findings, read_for, tensor_parallel_findings
from specctl.doctor.finding import Finding, error, note, warning
from specctl.doctor.launch_line import Launch, folder_of
from specctl.engine.graph_memory import WIDE_TOKENS, tokens_beside

__all__ = ["VllmLaunch"]

STOCK_METHODS = (
    "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix", "custom_class", "eagle",
    "eagle3", "extract_hidden_states", "mtp", "dflash", "dspark",
)  # fmt: skip
OWN_METHODS = ("specctl_suffix", "specctl_peagle", "specctl_hybrid")
_WITH_DRAFT = {"draft_model", "eagle", "eagle3", "dflash", "medusa", "mlp_speculator", *OWN_METHODS[1:]}
_ON_V1 = {"suffix", "medusa", "mlp_speculator", "custom_class"}
"""vLLM 0.32, config/vllm.py ``_get_v2_model_runner_unsupported_features``."""
_AHEAD_ON_V1 = {"eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark", "ngram_gpu"}
"""Methods with which Model Runner V1 schedules a step before the one before it has ended."""
_REMOVED = {"medusa": "0.33", "mlp_speculator": "0.33"}
_FLAGS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
_LOSSY = {"fly", "synthetic"}
SEQUENCES_DEFAULT, CONTEXT_DEFAULT, SHARE_DEFAULT = 256, 4096, 0.92
STOCK_GRAPH_TOKENS = 512


class VllmLaunch:
    def __init__(
        self, launch: Launch, target: ModelFacts | None, on_cpu: bool, device_bytes: float | None
    ) -> None:
        """``device_bytes``: memory of one device; None: not known."""
        self._launch, self._target, self._on_cpu = launch, target, on_cpu
        self._device_bytes = device_bytes
        self.skipped: list[str] = []
        self.draft: Draft | None = None
        self._config: dict[str, Any] = {}
        self._unreadable: str | None = None
        try:
            self._config = self._read()
        except ValueError as reason:
            self._unreadable = str(reason)

    def _read(self) -> dict[str, Any]:
        config = self._launch.json_option("speculative-config") or {}
        for flag, key in _FLAGS.items():
            value = self._launch.text(flag)
            if value is not None:
                config.setdefault(key, int(value) if value.isdigit() else value)
        return {key.replace("-", "_"): value for key, value in config.items()}

    @property
    def method(self) -> str:
        given = self._config.get("method")
        if isinstance(given, str):
            return given if given in ("mtp", *OWN_METHODS) or not given.endswith("_mtp") else "mtp"
        model = self._config.get("model")
        return "ngram" if model in ("ngram", "[ngram]") else "draft_model"

    @property
    def asks_specctl(self) -> bool:
        return self.method.startswith("specctl_") or "specctl" in self._config

    @property
    def drafts(self) -> int:
        given = self._config.get("num_speculative_tokens")
        return given if isinstance(given, int) else 8 if self.method.startswith("specctl_") else 0

    def findings(self) -> Iterator[Finding]:
        if self._launch.has("disable-log-stats"):
            yield warning(
                "metrics-off",
                "the server would count nothing",
                "--disable-log-stats",
                "leave it out: doctor, record and the daemon's latency bounds read /metrics",
            )
        if self._unreadable is not None:
            yield error(
                "config-unreadable",
                "--speculative-config cannot be read",
                f"{self._launch.text('speculative-config')}: {self._unreadable}",
                'one JSON object in single quotes: \'{"method": "ngram", ...}\'',
            )
            return
        if not self._config:
            yield note(
                "no-speculation",
                "the command asks for no speculation",
                "no --speculative-config",
                "specctl recommend MODEL names a method and its launch command",
            )
            return
        yield from self._config_findings()
        yield from self._draft_findings()
        yield from self._runner_findings()
        yield from self._graph_findings()
        yield from self._parallel_findings()

    def _config_findings(self) -> Iterator[Finding]:
        method = self._config.get("method")
        known = (*STOCK_METHODS, *OWN_METHODS)
        if isinstance(method, str) and method not in known and not method.endswith("_mtp"):
            nearest = difflib.get_close_matches(method, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
            yield error("method-unknown", "vLLM does not know the method", f"method {method!r}", hint)
            return
        if self.method in _REMOVED:
            yield warning(
                "method-removed",
                f"vLLM {_REMOVED[self.method]} has removed the method {self.method}",
                f"method {self.method!r}",
                "use another head: specctl recommend MODEL lists those that fit",
            )
        refused = self._refused_by_specctl()
        if refused is not None:
            yield error(
                "config-refused",
                "the plugin refuses the speculative config",
                refused,
                "docs/methods.md lists the options of each method",
            )
        if self._config.get("rejection_sample_method") in _LOSSY:
            yield warning(
                "not-lossless",
                "the output is not the model's own",
                f"rejection_sample_method {self._config['rejection_sample_method']!r}",
                'leave it out, or "standard" or "block"',
            )
        has_number = isinstance(self._config.get("num_speculative_tokens"), int)
        if not has_number and self.method not in (*OWN_METHODS, "suffix", "dspark", "mtp"):
            yield error(
                "config-refused",
                "the number of drafts is missing",
                f"method {self.method} without num_speculative_tokens",
                '"num_speculative_tokens": 4',
            )

    def _refused_by_specctl(self) -> str | None:
        """The plugin's own check of the config, where the plugin is installed."""
        if not self.asks_specctl:
            return None
        try:
            plugin = importlib.import_module("specctl_vllm.options")
        except ImportError:
            self.skipped.append("options of specctl's methods: the plugin is not installed here")
            return None
        try:
            plugin.parse_speculative_config(dict(self._config), not self._on_cpu and not self._is_v1_asked)
        except ValueError as reason:
            return str(reason)
        return None

    @property
    def _head_method(self) -> str:
        """The method whose kind of draft is named: a hybrid's is that of its head."""
        head = self._config.get("head", "peagle") if self.method == "specctl_hybrid" else "peagle"
        return self.method if head == "peagle" else str(head)

    def _draft_findings(self) -> Iterator[Finding]:
        name = self._config.get("model")
        if self._head_method == "mtp" and name is None:
            if self._target is not None and not self._target.mtp_layers:
                yield error(
                    "draft-format",
                    "the target has no MTP layers",
                    f"{self._target.folder}/config.json has no num_nextn_predict_layers or the like",
                    "take another method: specctl recommend MODEL",
                )
            return
        if self.method not in _WITH_DRAFT:
            return
        if not isinstance(name, str):
            yield error(
                "draft-missing", "the method needs a draft", f"{self.method} without model", '"model": FOLDER'
            )
            return
        folder = folder_of(name)
        if folder is None:
            if name.startswith(("/", "./", "../", "~")) or Path(name).exists():
                yield error(
                    "draft-unreadable",
                    "the draft's folder is not there",
                    f"model {name!r}",
                    "name its folder",
                )
            else:
                self.skipped.append(f"the draft {name}: a name on a hub, and doctor uses no network")
            return
        self.draft, finding = read_for(folder)
        if finding is not None:
            yield finding
        if self.draft is None:
            return
        is_parallel = self.method == "eagle3" and bool(self._config.get("parallel_drafting"))
        yield from draft_findings(
            "specctl_peagle" if is_parallel else self._head_method,
            self.draft,
            self._target,
            "vllm",
            is_heterogeneous=bool(self._config.get("use_heterogeneous_vocab")),
        )
        size = self._config.get("draft_tensor_parallel_size")
        ranks = self._launch.tensor_parallel_size
        yield from tensor_parallel_findings(
            self._head_method, self.draft, ranks, size if isinstance(size, int) else None
        )
        yield from self._length_findings(self.draft)

    def _length_findings(self, draft: Draft) -> Iterator[Finding]:
        trained = draft.trained_tokens
        if trained is not None and self.drafts > trained:
            yield error(
                "drafts-over-trained",
                f"more drafts than the head was trained for ({trained})",
                f"num_speculative_tokens {self.drafts}, {draft.facts.folder}/config.json",
                f'"num_speculative_tokens": {trained}',
            )
        longest, own = self._context_tokens, draft.facts.max_position_tokens
        if self.method == "draft_model" and own is not None and own < longest:
            yield warning(
                "draft-context",
                "the draft model cannot follow long requests",
                f"{draft.facts.folder}: max_position_embeddings {own}, requests reach {longest} tokens",
                f"--max-model-len {own}, or expect no drafts beyond that",
            )

    @property
    def _is_v1_asked(self) -> bool:
        return self._launch.environment.get("VLLM_USE_V2_MODEL_RUNNER") == "0"

    @property
    def _why_v1(self) -> str | None:
        """Why vLLM falls back to Model Runner V1 on a GPU; None: it does not."""
        if self._is_v1_asked:
            return "VLLM_USE_V2_MODEL_RUNNER=0"
        if self.method in _ON_V1:
            return f"Model Runner V2 does not have the method {self.method}"
        if self._config.get("parallel_drafting") and self.method not in ("dflash", "dspark"):
            return "Model Runner V2 does not have parallel drafting; specctl_peagle brings it"
        if self._config.get("use_heterogeneous_vocab"):
            return "Model Runner V2 maps no vocabularies (use_heterogeneous_vocab)"
        return None

    def _runner_findings(self) -> Iterator[Finding]:
        """On a CPU there is no other one."""
        if self._on_cpu:
            return
        why = self._why_v1
        if why is not None:
            yield warning(
                "runner-v1",
                "vLLM falls back to Model Runner V1",
                why,
                "specctl_suffix, specctl_peagle, eagle3, mtp, dflash and ngram_gpu run on V2: asynchronous "
                "scheduling, and a full graph for each number of drafts",
            )
        elif self.method == "ngram" and "specctl" in self._config:
            yield note(
                "scheduling-synchronous",
                "the method ngram gives up asynchronous scheduling",
                "method ngram",
                "ngram_gpu or specctl_suffix keep it; measured off-cost of ngram: docs/results.md",
            )

    def _graph_findings(self) -> Iterator[Finding]:
        if self._on_cpu:
            return
        if self._launch.has("enforce-eager"):
            yield warning(
                "graphs-off",
                "no CUDA graphs: each step of a few requests is bound by the host",
                "--enforce-eager",
                "leave it out, unless memory is short",
            )
            return
        widest = self._sequences * (self.drafts + 1)
        bound = self._graph_tokens_max or STOCK_GRAPH_TOKENS
        if self._launch.has("max-num-seqs") and self.drafts and widest > bound:
            whole = bound // (self.drafts + 1)
            steered = self._graph_tokens_max is not None
            do = (
                f'"specctl": {{"graph_tokens_max": {min(widest, 8192)}}}, or --max-num-seqs {whole}'
                if steered
                else '"specctl": {} captures up to 2,304 tokens, or a larger --max-cudagraph-capture-size'
            )
            yield warning(
                "graphs-miss-setting",
                f"batches of more than {whole} requests with {self.drafts} drafts have no full graph",
                f"--max-num-seqs {self._sequences} x ({self.drafts} + 1) = {widest} tokens; graphs: {bound}",
                do,
            )
        table = self._config.get("num_speculative_tokens_per_batch_size")
        if table and not self.asks_specctl and self._is_v1_asked:
            yield warning(
                "graphs-miss-setting",
                "a batch table on Model Runner V1 runs piecewise graphs",
                "num_speculative_tokens_per_batch_size with VLLM_USE_V2_MODEL_RUNNER=0",
                "leave VLLM_USE_V2_MODEL_RUNNER out",
            )

    def _parallel_findings(self) -> Iterator[Finding]:
        ranks = self._launch.count("data-parallel-size", 1)
        table = self._config.get("num_speculative_tokens_per_batch_size")
        if ranks > 1 and table and not self.asks_specctl:
            yield warning(
                "table-ignored",
                "vLLM ignores a batch table where data is parallel",
                f"--data-parallel-size {ranks} with num_speculative_tokens_per_batch_size",
                '"specctl": {} keeps it for dense models',
            )
        has_experts = self._target is not None and self._target.experts
        is_ahead = self.method in _AHEAD_ON_V1 and not self._launch.has("no-async-scheduling")
        if ranks > 1 and self.asks_specctl and has_experts and self._why_v1 and is_ahead and not self._on_cpu:
            yield warning(
                "not-controllable",
                "the table of this server can be read, not changed",
                f"experts and --data-parallel-size {ranks} on Model Runner V1: its ranks step together",
                "run it on Model Runner V2, or add --no-async-scheduling",
            )

    @property
    def _sequences(self) -> int:
        return self._launch.count("max-num-seqs", SEQUENCES_DEFAULT)

    @property
    def _context_tokens(self) -> int:
        own = None if self._target is None else self._target.max_position_tokens
        return self._launch.count("max-model-len", own or CONTEXT_DEFAULT)

    @property
    def _graph_tokens_max(self) -> int | None:
        """As many as the plugin has vLLM capture, 2,304 where sizes are not known; None: stock vLLM's."""
        if not self.asks_specctl:
            return None
        block = self._config.get("specctl")
        given = block.get("graph_tokens_max") if isinstance(block, dict) else None
        if isinstance(given, int):
            return given
        target, device_bytes = self._target, self._device_bytes
        if target is None or device_bytes is None or not target.hidden_size or not target.num_layers:
            return WIDE_TOKENS
        ranks = self._launch.tensor_parallel_size
        return tokens_beside(device_bytes, self.memory_share, target.hidden_size, target.num_layers, ranks)

    @property
    def memory_share(self) -> float:
        return self._launch.number("gpu-memory-utilization") or SHARE_DEFAULT

    def memory_plan(self) -> Plan:
        is_fp8 = "fp8" in (self._launch.text("kv-cache-dtype") or "")
        size = self._config.get("draft_tensor_parallel_size")
        return Plan(
            engine="vllm",
            requests=self._sequences,
            context_tokens=self._context_tokens,
            num_speculative_tokens=self.drafts if self._config else 0,
            tensor_parallel_size=self._launch.tensor_parallel_size,
            draft_tensor_parallel_size=size if isinstance(size, int) else None,
            graphs=not self._launch.has("enforce-eager"),
            graph_tokens_max=self._graph_tokens_max if self._config else None,
            kv_dtype_bytes=1 if is_fp8 else None,
            has_suffix_index=self.method in ("specctl_suffix", "specctl_hybrid"),
            keeps_states=self.method in ("specctl_peagle", "specctl_hybrid"),
        )
