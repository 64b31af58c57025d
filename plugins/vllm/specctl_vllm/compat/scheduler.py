"""The scheduler's part: reads the table for each step, trims drafts to it, counts what came of them."""

from __future__ import annotations

import functools
from typing import Any

from specctl.draft.options import SHARED
from specctl.engine.guard import GUARD
from specctl_vllm.compat.self_check_requests import self_check_of
from specctl_vllm.control.namespaces import namespace_of
from specctl_vllm.control.request_fields import is_shared
from specctl_vllm.control.steering import Steering
from specctl_vllm.options import options_from_env

__all__ = ["SteeredMixin", "steered"]


class SteeredMixin:
    """Comes before vLLM's scheduler class, whichever it is."""

    specctl: Steering
    num_spec_tokens: int
    scheduler_config: Any
    requests: Any
    use_v2_model_runner: bool
    specctl_drafts: Any = None
    """Those that came with the last step's tokens, until ``post_step`` takes them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._specctl_outputs: list[tuple[str, list[int]]] = []
        super().__init__(*args, **kwargs)
        self.specctl = Steering(self)
        if self.specctl.is_active:
            # vLLM pads a new decode with placeholder drafts up to the full number where no batch table
            # is configured; with a live table the padding would be verified for nothing.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
            options = options_from_env()
            ratio = 0.0 if options is None else options.control.verify_shadow_ratio
            self.specctl.self_check = GUARD.call("self_check", None, self_check_of, self, ratio)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.specctl.check_answers(lambda check: check.make_way())
        self.specctl.before_schedule()
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        self.specctl.after_schedule(scheduler_output)
        # The worker does not get the cache salt, which keeps tenants apart.
        scheduler_output.specctl_namespaces = _namespaces(self, scheduler_output)
        scheduler_output.specctl_unshared = _unshared(self, scheduler_output)
        # Model Runner V2 has the tokens on the device only.
        scheduler_output.specctl_outputs, self._specctl_outputs = self._specctl_outputs, []
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.specctl.before_update(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self.specctl.after_update(scheduler_output)
        self.specctl_drafts = getattr(model_runner_output, "specctl_drafts", None)
        self.specctl.check_answers(lambda check: check.take(outputs))
        return outputs

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.specctl.check_answers(lambda check: check.finished(request))
        if self.use_v2_model_runner:
            finished = GUARD.call("finished_output", None, _finished_output, request)
            if finished is not None:
                self._specctl_outputs.append(finished)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        self.specctl.drafts_arrived(getattr(draft_token_ids, "specctl", None))


def _finished_output(request: Any) -> tuple[str, list[int]] | None:
    return (namespace_of(request), list(request.output_token_ids)) if is_shared(request) else None


def _unshared(scheduler: Any, scheduler_output: Any) -> list[str]:
    """New requests whose output no other request may be drafted from."""
    return [
        new.req_id
        for new in scheduler_output.scheduled_new_reqs
        if not GUARD.call("is_shared", False, is_shared, scheduler.requests[new.req_id])
    ]


def _namespaces(scheduler: Any, scheduler_output: Any) -> dict[str, str]:
    found = {}
    for new in scheduler_output.scheduled_new_reqs:
        # A namespace that is not known is nobody else's.
        alone = f"request={new.req_id}"
        namespace = GUARD.call("namespace_of", alone, namespace_of, scheduler.requests[new.req_id])
        if namespace != SHARED:
            found[new.req_id] = namespace
    return found


@functools.cache
def steered(scheduler_cls: type) -> type:
    """The same scheduler class with the table in it."""
    return type(f"Specctl{scheduler_cls.__name__}", (SteeredMixin, scheduler_cls), {})
