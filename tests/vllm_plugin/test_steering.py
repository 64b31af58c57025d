"""Steps as the scheduler's part counts them, without an engine."""

import json
from types import SimpleNamespace

import pytest
from specctl_vllm.control import steering
from specctl_vllm.options import OPTIONS_ENV, Options

TOKENS = 3


class Engine:
    """One decoding request; every step takes a second and emits two tokens."""

    def __init__(self, monkeypatch, is_async):
        monkeypatch.setenv(OPTIONS_ENV, Options(method="specctl_suffix").model_dump_json())
        monkeypatch.setattr(steering, "sampled_verification_problem", lambda: None)
        self.now_s = 1000.0
        self.is_async = is_async
        self.waiting = []
        self.told = {}
        self.new = [SimpleNamespace(req_id="r")]
        monkeypatch.setattr(steering.time, "monotonic", lambda: self.now_s)
        self.request = SimpleNamespace(
            request_id="r", num_computed_tokens=10, num_prompt_tokens=5, num_tokens=11, num_output_tokens=6,
            spec_token_ids=[1] * TOKENS, sampling_params=None, lora_request=None, cache_salt=None,
        )  # fmt: skip
        speculative = SimpleNamespace(method="ngram_gpu", num_speculative_tokens=TOKENS)
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
                parallel_config=SimpleNamespace(data_parallel_size=1),
                use_v2_model_runner=False,
                model_config=model,
            ),
        )
        self.steering = steering.Steering(self.scheduler)

    def scheduled(self):
        self.steering.before_schedule()
        drafts = list(self.request.spec_token_ids)
        output = SimpleNamespace(
            num_scheduled_tokens={"r": len(drafts) + 1},
            scheduled_spec_decode_tokens={"r": drafts} if drafts else {},
            scheduled_new_reqs=self.new,
        )
        self.new = []
        self.steering.after_schedule(output)
        self.request.spec_token_ids = [7] * output.num_spec_tokens_to_schedule
        return output

    def set_table(self, num_speculative_tokens, *class_limits):
        row = {"decode_batch_from": 1, "num_speculative_tokens": num_speculative_tokens}
        change = {
            "base_version": self.steering.table.version,
            "rows": [row],
            "fallback_num_speculative_tokens": 0,
            "owner": "test",
            "class_limits": class_limits,
        }
        assert json.loads(self.steering.handle("put_table", json.dumps(change)))["status"] == 200

    def done(self, output):
        tokens = [1, 2][: output.num_scheduled_tokens["r"]]
        answer = SimpleNamespace(sampled_token_ids=[tokens], req_id_to_index={"r": 0}, **self.told)
        self.steering.before_update(output, answer)
        self.request.num_output_tokens += len(tokens)
        self.steering.after_update(output)

    def run(self, steps):
        """Under asynchronous scheduling the next step is scheduled before the one that runs has ended."""
        self.waiting = self.waiting or [self.scheduled()]
        for _ in range(steps):
            if self.is_async:
                self.waiting.append(self.scheduled())
            self.now_s += 1.0
            self.done(self.waiting.pop(0))
            if not self.is_async:
                self.waiting.append(self.scheduled())


@pytest.mark.parametrize("is_async", [False, True])
def test_seconds_of_steps_add_up_to_the_time_that_passed(monkeypatch, is_async):
    engine = Engine(monkeypatch, is_async)
    engine.run(10)
    assert engine.steering.is_active
    (cell,) = engine.steering.telemetry().cells
    assert (cell.steps, cell.emitted_tokens, cell.accepted_at) == (10, 20, (10, 0, 0))
    assert cell.step_s == pytest.approx(10.0)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_counts_under_the_drafts_that_it_verified(monkeypatch, is_async):
    """Where the next step is scheduled ahead, its drafts were asked for under the table before."""
    engine = Engine(monkeypatch, is_async)
    engine.run(0)
    for number in (TOKENS, 1, 0, 2, TOKENS, 0):
        engine.set_table(number)
        engine.run(4)
    cells = engine.steering.telemetry().cells
    assert {cell.num_speculative_tokens for cell in cells} == {0, 1, 2, TOKENS}
    for cell in cells:
        full = (cell.steps,) * cell.num_speculative_tokens
        assert cell.drafted_at[: cell.num_speculative_tokens] == full
        assert not any(cell.drafted_at[cell.num_speculative_tokens :])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_class_drafts_no_more_than_its_limit(monkeypatch, is_async):
    engine = Engine(monkeypatch, is_async)
    engine.run(0)
    engine.set_table(TOKENS, {"kind": "", "max_num_speculative_tokens": 1})
    engine.run(4)
    assert len(engine.scheduled().scheduled_spec_decode_tokens["r"]) == 1
    assert not any(cell.drafted_at[1] for cell in engine.steering.telemetry().cells if cell.steps > 2)
    engine.set_table(TOKENS, {"kind": "other", "max_num_speculative_tokens": 0})
    engine.run(4)
    assert len(engine.scheduled().scheduled_spec_decode_tokens["r"]) == TOKENS


def test_drafts_that_the_engine_did_not_verify_are_not_counted(monkeypatch):
    """One of three was kept, one rejected, and at the third nobody looked."""
    engine = Engine(monkeypatch, is_async=True)
    engine.told = {"specctl_rejected": [1]}
    engine.run(10)
    (cell,) = engine.steering.telemetry().cells
    assert (cell.drafted_at, cell.accepted_at, cell.verified_tokens) == ((10, 10, 0), (10, 0, 0), 30)


def test_a_step_that_follows_at_once_takes_the_devices_seconds(monkeypatch):
    """By the host's clock the launch of the next step is in them; the first one has no step before it."""
    engine = Engine(monkeypatch, True)
    engine.told = {"specctl_step_s": 0.25}
    engine.run(5)
    (cell,) = engine.steering.telemetry().cells
    assert (cell.steps, cell.step_s) == (5, pytest.approx(1.0 + 4 * 0.25))


def test_idle_time_before_a_step_is_not_its_own(monkeypatch):
    engine = Engine(monkeypatch, False)
    engine.told = {"specctl_step_s": 100.0}
    engine.run(5)
    (cell,) = engine.steering.telemetry().cells
    assert cell.step_s == pytest.approx(5.0)


def test_steps_are_counted_by_traffic_class_too(monkeypatch):
    engine = Engine(monkeypatch, is_async=True)
    engine.run(10)
    (one,) = engine.steering.telemetry().classes
    assert (one.namespace, one.kind, one.context_to_tokens, one.decoding) == ("", "", 1024, 1)
    assert (one.request_steps, one.watched_at, one.accepted_at) == (10, (10, 10, 10), (10, 0, 0))
    engine.scheduler.running = []
    assert engine.steering.telemetry().classes[0].decoding == 0
