"""vLLM's scheduler as our steering sees it: one decoding request and a clock, without an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from specctl_vllm.control import steering
from specctl_vllm.options import OPTIONS_ENV, Options

__all__ = ["TOKENS", "Engine"]

TOKENS = 3


class Engine:
    """Every step takes a second and emits two tokens, where it has a draft."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        is_async: bool,
        method: str = "specctl_suffix",
        engine_method: str = "ngram_gpu",
        is_v2: bool = False,
        ranks_in_step: int = 1,
        adapts: bool = False,
    ) -> None:
        monkeypatch.setenv(OPTIONS_ENV, Options(method=method).model_dump_json())
        monkeypatch.setattr(steering, "sampled_verification_problem", lambda: None)
        self.now_s = 1000.0
        self.is_async = is_async
        self.waiting: list[Any] = []
        self.output_fields: dict[str, Any] = {}
        self.new = [SimpleNamespace(req_id="r")]
        monkeypatch.setattr(steering.time, "monotonic", lambda: self.now_s)
        self.request = _request()
        speculative = SimpleNamespace(
            method=engine_method,
            num_speculative_tokens=TOKENS,
            parallel_drafting=method == "specctl_peagle",
            use_multi_module_mtp=lambda: False,
            enable_adaptive_verification=adapts,
        )
        model = SimpleNamespace(served_model_name="m", model="m", max_model_len=100)
        self.scheduler = SimpleNamespace(
            requests={"r": self.request},
            running=[self.request],
            waiting=[],
            kv_cache_manager=SimpleNamespace(usage=0.0),
            scheduler_config=SimpleNamespace(async_scheduling=is_async, max_num_seqs=4),
            vllm_config=SimpleNamespace(
                num_speculative_tokens=TOKENS,
                speculative_config=speculative,
                parallel_config=SimpleNamespace(data_parallel_size=ranks_in_step, pipeline_parallel_size=1),
                use_v2_model_runner=is_v2,
                model_config=model,
            ),
        )
        self.steering = steering.Steering(self.scheduler)

    def scheduled(self) -> Any:
        self.steering.before_schedule()
        drafts = list(self.request.spec_token_ids)
        output = SimpleNamespace(
            num_scheduled_tokens={"r": len(drafts) + 1},
            scheduled_spec_decode_tokens={"r": drafts} if drafts else {},
            scheduled_new_reqs=self.new,
            finished_req_ids=set(),
        )
        self.new = []
        self.steering.after_schedule(output)
        self.request.spec_token_ids = [7] * output.num_spec_tokens_to_schedule
        return output

    def set_table(self, num_speculative_tokens: int, *class_limits: Any, **more: Any) -> None:
        row = {"decode_batch_from": 1, "num_speculative_tokens": num_speculative_tokens, **more}
        change = {
            "base_version": self.steering.table.version,
            "rows": [row],
            "fallback_num_speculative_tokens": 0,
            "owner": "test",
            "class_limits": class_limits,
        }
        answer = json.loads(self.steering.handle("put_table", json.dumps(change)))
        assert answer["status"] == 200, answer

    def done(self, output: Any) -> None:
        tokens: Sequence[int] = [1, 2][: output.num_scheduled_tokens["r"]]
        answer = SimpleNamespace(sampled_token_ids=[tokens], req_id_to_index={"r": 0}, **self.output_fields)
        self.steering.before_update(output, answer)
        self.request.num_output_tokens += len(tokens)
        self.steering.after_update(output)

    def run(self, steps: int) -> None:
        """Under asynchronous scheduling the next step is scheduled before the one that runs has ended."""
        self.waiting = self.waiting or [self.scheduled()]
        for _ in range(steps):
            if self.is_async:
                self.waiting.append(self.scheduled())
            self._runs(self.waiting[0])
            self.done(self.waiting.pop(0))
            if not self.is_async:
                self.waiting.append(self.scheduled())

    def _runs(self, output: Any) -> None:
        self.now_s += 1.0


def _request() -> SimpleNamespace:
    return SimpleNamespace(
        request_id="r", num_computed_tokens=10, num_prompt_tokens=5, num_tokens=11, num_output_tokens=6,
        spec_token_ids=[1] * TOKENS, sampling_params=None, lora_request=None, cache_salt=None,
    )  # fmt: skip
