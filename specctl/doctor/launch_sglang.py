"""A launch command of SGLang: its speculative options, its trees, its prepared states."""

from __future__ import annotations

import difflib
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specctl.checkpoints.draft import Draft, Kind
from specctl.checkpoints.facts import ModelFacts
from specctl.checkpoints.memory import Plan
from specctl.doctor.draft_checks import draft_findings, read_for, tensor_parallel_findings
from specctl.doctor.finding import Finding, error, note, warning
from specctl.doctor.launch_line import Launch, folder_of

__all__ = ["SglangLaunch"]

STOCK_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
OWN_ALGORITHMS = ("SPECCTL_SUFFIX", "SPECCTL_PEAGLE")
_BY_RANKS = ("EAGLE", "EAGLE3", "NEXTN")
"""Steered with data-parallel attention."""
_STEERED = ("NGRAM", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", *OWN_ALGORITHMS)
_METHODS = {"SPECCTL_PEAGLE": "specctl_peagle", "NEXTN": "mtp"}
_WITH_DRAFT = {"EAGLE", "EAGLE3", "STANDALONE", "DFLASH", "SPECCTL_PEAGLE"}
_OPTIONS_ENV = "SPECCTL_SGLANG_OPTIONS"
_PREPARED_DEFAULT = (0, 1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63)
REQUESTS_DEFAULT, CONTEXT_DEFAULT, SHARE_DEFAULT = 48, 4096, 0.88
"""SGLang allows 48 requests where speculation is on and --max-running-requests is not given."""


class SglangLaunch:
    def __init__(self, launch: Launch, target: ModelFacts | None) -> None:
        self._launch, self._target = launch, target
        self.skipped: list[str] = []
        self.draft: Draft | None = None
        self._on_cpu = launch.text("device") == "cpu"

    @property
    def algorithm(self) -> str:
        return (self._launch.text("speculative-algorithm") or "").upper()

    @property
    def asks_specctl(self) -> bool:
        return self.algorithm in OWN_ALGORITHMS or _OPTIONS_ENV in self._launch.environment

    @property
    def drafts(self) -> int:
        """The deepest chain."""
        return max(self._launch.count("speculative-num-draft-tokens", 1) - 1, 0)

    def findings(self) -> Iterator[Finding]:
        if not self._launch.has("enable-metrics"):
            yield warning(
                "metrics-off",
                "the server would serve no /metrics",
                "no --enable-metrics",
                "--enable-metrics: doctor, record and the daemon's latency bounds read them",
            )
        if not self.algorithm:
            yield note(
                "no-speculation",
                "the command asks for no speculation",
                "no --speculative-algorithm",
                "specctl recommend MODEL names a method and its launch command",
            )
            return
        yield from self._algorithm_findings()
        yield from self._option_findings()
        yield from self._draft_findings()
        yield from self._shape_findings()
        yield from self._mode_findings()

    def _algorithm_findings(self) -> Iterator[Finding]:
        known = (*STOCK_ALGORITHMS, *OWN_ALGORITHMS, "FROZEN_KV_MTP")
        if self.algorithm in known:
            return
        nearest = difflib.get_close_matches(self.algorithm, known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
        yield error("method-unknown", "SGLang does not know the algorithm", self.algorithm, hint)

    def _option_findings(self) -> Iterator[Finding]:
        """The plugin's own check of its options, where the plugin is installed."""
        text = self._launch.environment.get(_OPTIONS_ENV)
        if text is None:
            return
        try:
            plugin = importlib.import_module("specctl_sglang.options")
        except ImportError:
            self.skipped.append(f"{_OPTIONS_ENV}: the plugin is not installed here")
            return
        try:
            with _environment(_OPTIONS_ENV, text):
                plugin.options_from_env()
        except ValueError as reason:
            yield error(
                "config-refused", "the plugin refuses its options", str(reason), "docs/sglang.md lists them"
            )

    def _draft_findings(self) -> Iterator[Finding]:
        name = self._launch.text("speculative-draft-model-path")
        if name is None:
            if self.algorithm in _WITH_DRAFT and not self._has_own_draft:
                yield error(
                    "draft-missing",
                    "the algorithm needs a draft",
                    f"{self.algorithm} without --speculative-draft-model-path",
                    "--speculative-draft-model-path FOLDER",
                )
            elif self.algorithm == "NEXTN" and self._target is not None and not self._target.mtp_layers:
                yield error(
                    "draft-format",
                    "the target has no MTP layers",
                    f"{self._target.folder}/config.json has no num_nextn_predict_layers or the like",
                    "take another algorithm: specctl recommend MODEL",
                )
            return
        folder = folder_of(name)
        if folder is None:
            if name.startswith(("/", "./", "../", "~")) or Path(name).exists():
                yield error(
                    "draft-unreadable", "the draft's folder is not there", name, "name the draft's folder"
                )
            else:
                self.skipped.append(f"the draft {name}: a name on a hub, and doctor uses no network")
            return
        self.draft, finding = read_for(folder)
        if finding is not None:
            yield finding
        if self.draft is None:
            return
        method = _METHODS.get(self.algorithm, self.algorithm.lower())
        yield from draft_findings(method, self.draft, self._target, "sglang")
        yield from tensor_parallel_findings(method, self.draft, self._launch.tensor_parallel_size, None)
        trained = self.draft.trained_tokens
        if trained is not None and self.drafts > trained:
            yield error(
                "drafts-over-trained",
                f"more drafts than the head was trained for ({trained})",
                f"--speculative-num-draft-tokens {self.drafts + 1}: {self.drafts} drafts",
                f"--speculative-num-draft-tokens {trained + 1}",
            )

    @property
    def _has_own_draft(self) -> bool:
        """EAGLE on a model whose MTP layers are in its own checkpoint."""
        return self.algorithm == "EAGLE" and self._target is not None and self._target.mtp_layers > 0

    def _shape_findings(self) -> Iterator[Finding]:
        steps = self._launch.count("speculative-num-steps", 0)
        topk = self._launch.count("speculative-eagle-topk", 1)
        width = self._launch.count("speculative-num-draft-tokens", 0)
        if topk > 1 and steps and width > (nodes := topk + (steps - 1) * topk * topk) + 1:
            yield error(
                "tree-too-small",
                f"a tree of {steps} steps and {topk} branches has {nodes} nodes",
                f"--speculative-num-draft-tokens {width}",
                f"--speculative-num-draft-tokens {nodes + 1} at most, or more steps",
            )
        if topk == 1 and steps and width and width != steps + 1:
            yield warning(
                "graphs-miss-setting",
                f"a chain of {steps} steps is {steps + 1} positions wide",
                f"--speculative-num-steps {steps} --speculative-num-draft-tokens {width}",
                f"--speculative-num-draft-tokens {steps + 1}: it counts the target's own token",
            )
        if self._launch.has("disable-cuda-graph") and not self._on_cpu:
            yield warning(
                "graphs-off",
                "no CUDA graphs: each step of a few requests is bound by the host",
                "--disable-cuda-graph",
                "leave it out, unless memory is short",
            )
        most = self._launch.number("cuda-graph-max-bs")
        if most is not None and self._launch.has("max-running-requests") and most < self._requests:
            yield warning(
                "graphs-miss-setting",
                f"batches of more than {most:g} requests have no graph",
                f"--cuda-graph-max-bs {most:g}, --max-running-requests {self._requests}",
                f"--cuda-graph-max-bs {self._requests}",
            )
        if not self._launch.has("max-running-requests"):
            yield note(
                "requests-bounded",
                f"SGLang runs {REQUESTS_DEFAULT} requests at once where speculation is on",
                "no --max-running-requests",
                "--max-running-requests N, where more come at once",
            )
        yield from self._candidate_findings(self._prepared)

    def _candidate_findings(self, candidates: list[int]) -> Iterator[Finding]:
        over = [number for number in candidates if number > self.drafts]
        if "candidates" in self._options and over and self.drafts:
            yield warning(
                "graphs-miss-setting",
                f"settings of more than {self.drafts} drafts are not prepared",
                f"candidates {over}, --speculative-num-draft-tokens {self.drafts + 1}",
                f"--speculative-num-draft-tokens {max(over) + 1}",
            )
        if "candidates" in self._options and 0 not in candidates:
            yield warning(
                "policy-cannot-act",
                "speculation cannot be turned off on this server",
                f"candidates {candidates} without 0",
                "add 0 to candidates",
            )

    def _mode_findings(self) -> Iterator[Finding]:
        for name in ("speculative-accept-threshold-single", "speculative-accept-threshold-acc"):
            value = self._launch.number(name)
            if value is not None and value != 1.0:
                yield warning(
                    "not-lossless", "the output is not the model's own", f"--{name} {value:g}", "leave it out"
                )
        modes = [name for name in ("enable-two-batch-overlap", "enable-pdmux") if self._launch.has(name)]
        shares_steps = self._launch.has("enable-dp-attention") or self._launch.count("attn-dp-size", 1) > 1
        if shares_steps and self.algorithm not in _BY_RANKS:
            modes.append("enable-dp-attention")
        if self._launch.count("pipeline-parallel-size", 1) > 1:
            modes.append("pipeline-parallel-size")
        if self.asks_specctl and modes:
            yield warning(
                "not-controllable",
                "the table of this server can be read, not changed",
                ", ".join(f"--{name}" for name in modes),
                "leave them out, or take the static setting that bench finds",
            )
        elif self.asks_specctl and self.algorithm not in _STEERED:
            yield warning(
                "not-controllable",
                "the table of this server can be read, not changed",
                f"algorithm {self.algorithm}",
                f"steered are {', '.join(_STEERED)}",
            )

    @property
    def _options(self) -> dict[str, Any]:
        try:
            found = json.loads(self._launch.environment.get(_OPTIONS_ENV) or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def _prepared(self) -> list[int]:
        given = self._options.get("candidates")
        if isinstance(given, list):
            return [number for number in given if isinstance(number, int)]
        return sorted({number for number in (*_PREPARED_DEFAULT, self.drafts) if number <= self.drafts})

    @property
    def _requests(self) -> int:
        return self._launch.count("max-running-requests", REQUESTS_DEFAULT)

    @property
    def memory_share(self) -> float:
        """Weights and KV cache are inside --mem-fraction-static, graphs are not: both are counted here."""
        return 0.97 if not self._launch.has("mem-fraction-static") else self._static_share

    @property
    def _static_share(self) -> float:
        return min((self._launch.number("mem-fraction-static") or SHARE_DEFAULT) + 0.05, 0.97)

    def memory_plan(self) -> Plan:
        own = None if self._target is None else self._target.max_position_tokens
        is_fp8 = "fp8" in (self._launch.text("kv-cache-dtype") or "")
        is_steered = self.asks_specctl
        trees = 3 if self._launch.count("speculative-eagle-topk", 1) > 1 else 0
        return Plan(
            engine="sglang",
            requests=self._requests,
            context_tokens=self._launch.count("context-length", own or CONTEXT_DEFAULT),
            num_speculative_tokens=self.drafts,
            tensor_parallel_size=self._launch.tensor_parallel_size,
            graphs=not self._launch.has("disable-cuda-graph"),
            prepared=len(self._prepared) + trees if is_steered else 1,
            kv_dtype_bytes=1 if is_fp8 else None,
            has_suffix_index=self.algorithm == "SPECCTL_SUFFIX",
            keeps_states=self.draft is not None and self.draft.kind is Kind.PEAGLE,
        )


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable of this process for a moment."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
