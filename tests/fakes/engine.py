"""A fake engine that speaks the real protocol over HTTP, with a simulated course of decoding.

Faults are switched on by attributes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from fakes.decoding import COPYING, MAX_TOKENS, RANDOM_TEXT, Cost, Decoding, Traffic
from fakes.http_server import FakeServer
from pydantic import ValidationError

from specctl.contract import CONTRACT_VERSION, ROUTE_PREFIX
from specctl.contract.adaptivity import EngineAdaptivity
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TablePut, TableRow, TableState
from specctl.engine.live_table import LiveTable
from specctl.engine.ranks import Adoption
from specctl.errors import LeaseHeld, TableError, VersionConflict

__all__ = ["COPYING", "MAX_TOKENS", "RANDOM_TEXT", "Cost", "FakeEngine", "Traffic"]


ADAPTED = 2


class FakeEngine(Decoding, FakeServer):
    """``with FakeEngine() as engine: engine.url``.

    ``start_tokens`` or ``start``: the table before the first PUT. ``settings``: the prepared ones; none:
    chains of the ``legal`` depths. ``sample_every_min_steps`` None: rows' samples are refused.
    ``adaptivity``: on while ``adapts``, and lets ``ADAPTED`` tokens through.
    """

    def __init__(
        self,
        *,
        traffic: Traffic = COPYING,
        cost: Cost | None = None,
        start_tokens: int = 0,
        start: Setting | None = None,
        settings: tuple[Setting, ...] = (),
        sample_every_min_steps: int | None = 2,
        has_shadow: bool = False,
        has_plugin: bool = True,
        token: str | None = None,
        legal: tuple[int, ...] = tuple(range(MAX_TOKENS + 1)),
        decode_batch_max: int = 8,
        class_limits_max: int = 0,
        min_token_prob: float | None = None,
        method: str = "specctl_suffix",
        adaptivity: EngineAdaptivity | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__(traffic, cost or Cost(), decode_batch_max, seed)
        self.method, self.adaptivity, self.adapts = method, adaptivity, adaptivity is not None
        self.has_plugin, self.has_shadow, self.token = has_plugin, has_shadow, token
        self.settings, self.legal, self.decode_batch_max = settings, legal, decode_batch_max
        self.sample_every_min_steps = sample_every_min_steps
        self.method_options: dict[str, str] = {}
        self.drafts_from_outputs = False
        self.class_limits_max, self.min_token_prob = class_limits_max, min_token_prob
        self.start = start or Setting(num_speculative_tokens=start_tokens)
        self.requests: list[tuple[str, str]] = []
        self.puts: list[TablePut] = []
        self.boots = 0
        self.waiting_pieces: int | None = None
        # Faults.
        self.delay_s = 0.0
        self.forced_status: dict[str, int] = {}
        self.forced_body = b'{"error": "forced", "message": "forced"}'
        self.mangle: dict[str, Callable[[bytes], bytes]] = {}
        self.lies = False
        self.refuses_samples = False
        self.ranks_behind: tuple[int, ...] = ()
        self.failures: dict[str, int] = {}
        self.more_metrics: Callable[[], str] = str
        self.restart()

    def restart(self) -> None:
        self.boots += 1
        self.boot_id = f"boot-{id(self)}-{self.boots}"
        self.begin()
        start = TableRow(decode_batch_from=1, **self.start.model_dump())
        self.live = LiveTable(self.capabilities(), (start,), lambda: self.time_s)

    @property
    def rows(self) -> tuple[TableRow, ...]:
        applied = self.live.read()
        return applied.start_rows if self.lies else applied.rows

    @property
    def version(self) -> int:
        return self.live.version

    @property
    def state(self) -> TableState:
        return self.live.state

    @property
    def owner(self) -> str | None:
        return self.live.read().owner

    @property
    def reason(self) -> str:
        return self.live.read().reason

    @property
    def fallback(self) -> int | None:
        return self.live.read().fallback_num_speculative_tokens

    @property
    def lease_s(self) -> float | None:
        return self.live.read().lease_s

    @property
    def class_limits(self) -> tuple[ClassLimit, ...]:
        return self.live.class_limits

    @class_limits.setter
    def class_limits(self, limits: tuple[ClassLimit, ...]) -> None:
        self.live.class_limits = limits

    def operator_puts(self, put: TablePut) -> None:
        """Past any lease and version."""
        self.live.adopt(Adoption(decider="operator", version=self.version + 1, change=put))

    def most_drafted(self, setting: Setting) -> int:
        depth = setting.num_speculative_tokens
        return min(depth, ADAPTED) if self.adapts else depth

    def tokens_at(self, decode_batch: int) -> int:
        return self.setting_at(decode_batch).num_speculative_tokens

    def setting_at(self, decode_batch: int) -> Setting:
        """Of the row; a sample apart."""
        return self.start if self.lies else self.live.lookup_row(decode_batch).setting

    def next_step(self, decode_batch: int) -> tuple[Setting, bool]:
        return (self.start, False) if self.lies else self.live.next_step(decode_batch)

    # Messages.

    def capabilities(self) -> Capabilities:
        depths = tuple(sorted({one.num_speculative_tokens for one in self.settings})) or self.legal
        topks = sorted({one.tree_topk for one in self.settings}) or [1]
        return Capabilities(
            contract_version=CONTRACT_VERSION,
            engine="vllm",
            engine_version="0.32.0",
            plugin_version="0.1.0",
            boot_id=self.boot_id,
            model="fake",
            method=self.method,
            controllable=True,
            num_speculative_tokens_legal=depths,
            settings=self.settings,
            tree_topk_max=topks[-1],
            tree_topk_legal=tuple(topks),
            why_chains_only=None if topks[-1] > 1 else "only chains are prepared",
            sample_every_min_steps=self.sample_every_min_steps,
            decode_batch_max=self.decode_batch_max,
            context_max_tokens=4096,
            decode_batch_buckets=self.buckets.uppers,
            rows_max=64,
            lease_max_s=3600.0,
            has_shadow_acceptance=self.has_shadow,
            min_token_prob=self.min_token_prob,
            class_limits_max=self.class_limits_max,
            method_options=self.method_options,
            drafts_from_outputs=self.drafts_from_outputs,
            adaptivity=self.adaptivity,
        )

    def applied(self) -> AppliedTable:
        table = self.live.read().model_copy(update={"ranks_behind": self.ranks_behind})
        return table.model_copy(update={"rows": table.start_rows}) if self.lies else table

    def telemetry(self) -> dict[str, Any]:
        cells = [{**key.named(self.buckets), **vars(cell)} for key, cell in self.cells.items()]
        batch = self.traffic.decode_batch if self.traffic else 0
        return {
            "contract_version": CONTRACT_VERSION,
            "boot_id": self.boot_id,
            "uptime_s": self.time_s,
            "table_version": self.version,
            "table_state": self.state,
            "num_speculative_tokens": self.tokens_at(max(batch, 1)),
            "running": batch,
            "waiting": 0,
            "decoding": batch,
            "kv_cache_used_ratio": 0.1,
            "failures": self.failures,
            "front_end_waiting_pieces": self.waiting_pieces,
            "adaptivity": None if self.adaptivity is None else {"is_on": self.adapts},
            "cells": cells,
            "shadow": {
                "drafts": self.shadow_drafts,
                "drafted_at": self.shadow_drafted,
                "accepted_at": self.shadow_accepted,
            }
            if self.has_shadow
            else None,
        }

    def metrics(self) -> str:
        drafts = sum(cell.drafted_at[0] for cell in self.cells.values())
        accepted_at = [sum(cell.accepted_at[j] for cell in self.cells.values()) for j in range(MAX_TOKENS)]
        drafted = sum(sum(cell.drafted_at) for cell in self.cells.values())
        labels = 'engine="0",model_name="g"'
        lines = [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {self.traffic.decode_batch if self.traffic else 0}.0",
            f"vllm:num_requests_waiting{{{labels}}} 0.0",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 0.0',
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0",
            f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e+09",
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {sum(accepted_at)}.0",
            f"vllm:generation_tokens_total{{{labels}}} {self.emitted}.0",
            f"vllm:iteration_tokens_total_count{{{labels}}} {sum(c.steps for c in self.cells.values())}",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.1",
        ]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{j}"}} {value}.0'
            for j, value in enumerate(accepted_at)
        ]
        return "\n".join(lines) + "\n" + self.more_metrics()

    def put(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            put = TablePut.model_validate_json(body)
        except ValidationError as error:
            return 400, {"error": "malformed", "message": str(error), "refusals": []}
        self.puts.append(put)
        if self.refuses_samples and any(row.sample for row in put.rows):
            refusal = {"row": 0, "field": "sample.setting", "reason": "no graph is captured for it"}
            return 422, {"error": "table_refused", "message": "", "refusals": [refusal]}
        try:
            answer = self.live.put(put).model_dump(mode="json")
        except LeaseHeld as error:
            held = {"owner": error.owner, "remaining_s": error.remaining_s}
            return 409, {"error": "lease_held", "message": str(error), **held}
        except VersionConflict as error:
            return 409, {"error": "version_conflict", "message": str(error), "version": error.expected}
        except TableError as error:
            refusals = [refusal.model_dump() for refusal in error.refusals]
            return 422, {"error": "table_refused", "message": str(error), "refusals": refusals}
        return 200, answer

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        if self.delay_s:
            time.sleep(self.delay_s)
        if path in self.forced_status:
            return self.forced_status[path], self.forced_body
        if path == "/metrics":
            return 200, self.metrics().encode()
        if path == "/version":
            return 200, b'{"version": "0.32.0"}'
        if not path.startswith(ROUTE_PREFIX) or not self.has_plugin:
            return 404, b'{"detail": "Not Found"}'
        if self.token is not None and headers.get("Authorization") != f"Bearer {self.token}":
            return 401, b'{"error": "unauthorized", "message": "wrong token"}'
        name = path.removeprefix(f"{ROUTE_PREFIX}/")
        if (method, name) == ("PUT", "table"):
            status, message = self.put(body)
            return status, json.dumps(message).encode()
        if name == "capabilities":
            return 200, self.capabilities().model_dump_json().encode()
        if name == "table":
            return 200, self.applied().model_dump_json().encode()
        if name == "telemetry":
            return 200, json.dumps(self.telemetry()).encode()
        return 404, b"{}"

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        with self.lock:
            self.requests.append((method, path))
            status, answer = self.answer(method, path, headers, body)
        return status, self.mangle.get(path, bytes)(answer)
