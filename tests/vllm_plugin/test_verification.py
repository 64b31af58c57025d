"""Which batches specctl's verify kernels take from vLLM's sampler, and with what they are called."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("triton")
import torch
from specctl_kernels.verify_rejection.reference import verify_rejection_reference
from specctl_vllm.compat import verification, verified_batches
from specctl_vllm.compat.forbidden_drafts import with_forbidden
from specctl_vllm.options import parse_speculative_config
from support.verify_tests import LEAST_CHANCE, chi_square_chance
from support.vllm_batches import COLUMNS, REQUESTS, batch, rejection

from specctl.engine.guard import GUARD


class SomebodysProcessor:
    pass


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    monkeypatch.setattr(verification, "scope", verification.Scope(greedy=True, sampled=True, block=True))
    verified_batches.batches.counts.clear()
    monkeypatch.setattr(verified_batches, "_on_device", None)


def why(made, requests=(0, 1, 2, 3), drafted=None, logprobs=-1):
    slots = np.array(requests)
    greedy = verification.is_greedy(made, slots)
    return verification.why_engine(made, slots, COLUMNS, drafted, logprobs, greedy)


def with_sampler(made, **values):
    for name, value in values.items():
        setattr(made.sampler, name, value)
    return made


def use(made, slot, reason):
    """A request that needs its logits changed."""
    made.sampler.needs_logits_processing[slot] = True
    bias, penalties, bad_words = made.sampler.logits_processors
    field = {
        "logit_bias": bias.use_logit_bias,
        "penalties": penalties.use_penalty,
        "bad_words": bad_words.num_bad_words.np,
        "thinking_budget": made.sampler.thinking_budget_state.use_thinking_budget,
    }[reason]
    field[slot] = 1
    return made


def test_greedy_and_sampled_batches_are_ours():
    assert why(rejection()) is None
    assert why(rejection((0, 0.8, 1.0, 0))) is None


@pytest.mark.parametrize("reason", ["logit_bias", "penalties", "bad_words", "thinking_budget"])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_request_whose_logits_are_changed_gives_its_batch_to_the_engine(reason, temperature):
    made = use(rejection([temperature] * REQUESTS), 2, reason)
    assert why(made) == reason
    assert why(made, (0, 1, 3)) is None, "another batch"


def test_a_model_that_does_not_think_has_no_budgets():
    """As vLLM builds it without a reasoning config: with no array of who uses one."""
    from vllm.v1.worker.gpu.sample.thinking_budget import ThinkingBudgetState

    state = ThinkingBudgetState(SimpleNamespace(max_num_reqs=REQUESTS, device="cpu"), None)
    assert why(with_sampler(rejection((0.8,) * 4), thinking_budget_state=state)) is None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("synthetic_conditional_rates", [0.5], "synthetic_acceptance"),
        ("watermark_key", 7, "watermark"),
    ],
)
def test_an_engine_wide_option_that_ours_do_not_know(field, value, reason):
    made = rejection()
    setattr(made, field, value)
    assert why(made) == reason


def test_an_unknown_processor_is_asked_by_the_engine_only():
    made = rejection((0, 0.8, 0, 0))
    made.sampler.logits_processors.append(SomebodysProcessor())
    assert why(made) == "logits_processor"
    assert why(made, (0, 2)) is None, "nobody needs any processing: vLLM asks no processor either"


def test_logprobs_of_processed_logits_need_them():
    made = with_sampler(rejection((0.8,) * 4), logprobs_mode="processed_logprobs")
    assert why(made, logprobs=5) == "processed_logprobs"
    assert why(made) is None
    assert why(rejection((0.8,) * 4), logprobs=5) is None


def test_further_reasons():
    sampled = (0.8,) * 4
    assert why(with_sampler(rejection(), return_sampling_mask=True)) == "sampling_mask"
    assert why(with_sampler(rejection(sampled), use_fp64_gumbel=True)) == "fp64_gumbel"
    assert why(rejection(sampled), drafted=torch.zeros(4, 2, COLUMNS)) is None
    assert why(rejection(sampled), drafted=torch.zeros(4, 2, 90)) == "draft_vocabulary"


def test_the_scope_of_ours():
    verification.scope.sampled = False
    assert why(rejection((0, 0.8, 0, 0))) == "sampled"
    assert why(rejection()) is None
    verification.scope.greedy = False
    assert why(rejection()) == "not_asked"


def called(monkeypatch, made, slots, drafted=None, fails=None):
    """(answer, calls of our kernels)."""
    calls = []

    def kernel(name):
        def record(*given, **named):
            if fails is not None:
                raise fails
            calls.append((name, given, named))
            return "tokens", "numbers"

        return record

    for name in ("verify_greedy", "verify_rejection", "verify_block"):
        monkeypatch.setattr(verification, name, kernel(name))
    verify = verification.wrap_verify_in_chunks(lambda self, *given: ("engine", *given))
    rows = 3 * len(slots)
    logits = torch.zeros(rows, COLUMNS, dtype=torch.bfloat16)
    drafts, invalid = torch.zeros(rows, dtype=torch.int32), torch.full((rows,), -1, dtype=torch.int32)
    positions = torch.zeros(rows, dtype=torch.int64)
    return verify(made, logits, batch(slots), drafted, drafts, positions, 10, -1, invalid), calls


def test_a_greedy_batch_takes_the_smaller_kernel(monkeypatch):
    answer, [(name, given, named)] = called(monkeypatch, rejection(), [3, 1])
    assert name == "verify_greedy"
    assert given[1].tolist() == [-1] * 6, "what is verified, not what was fed"
    assert named == {"width": 3}
    assert answer == ("tokens", "numbers", ("logprobs", torch.bfloat16, -1), None)
    assert verified_batches.batches.snapshot() == {"batches_verified_by_specctl": 1.0}


def test_a_sampled_batch_hands_over_states_by_slot_and_no_copy(monkeypatch):
    made = rejection((0, 0.8, 1.0, 0))
    states = made.sampler.sampling_states
    drafted = torch.zeros(4, 2, COLUMNS)
    _, [(name, given, named)] = called(monkeypatch, made, [3, 1], drafted)
    assert name == "verify_rejection"
    assert given[3].temperature is states.temperature.gpu
    assert given[3][1:4] == (None, None, None), "no request of the batch cuts"
    assert given[3].seeds is states.seeds.gpu
    assert named["slots"].tolist() == named["draft_slots"].tolist() == [3, 1]
    assert named["draft_logits"] is drafted
    assert named["not_finite"].tolist() == [0]


MASKED = float("-inf")


def test_the_first_forbidden_draft_of_a_request_is_verified_with_its_token():
    logits = torch.zeros(8, 10)
    logits[[1, 4], [7, 5]] = MASKED
    fed = torch.tensor([3, 4, 7, 6, 2, 5, 9, 8], dtype=torch.int32)
    valid = torch.tensor([3, 4, -1, -1, 2, -1, -1, -1], dtype=torch.int32)
    assert with_forbidden(logits, fed, valid).tolist() == [3, 4, 7, -1, 2, 5, -1, -1]
    assert with_forbidden(torch.zeros(8, 10), fed, valid).tolist() == valid.tolist(), "no mask stands there"
    fed[2], fed[5] = 10, -1
    assert with_forbidden(logits, fed, valid).tolist() == [3, 4, -1, -1, 2, -1, -1, -1]


def emitted_under_a_grammar(monkeypatch, requests, keeps_tokens):
    """Of one draft each, sampled by a law that prefers what the grammar forbids."""
    if not keeps_tokens:
        monkeypatch.setattr(verification, "with_forbidden", lambda logits, drafts, valid: valid)
    monkeypatch.setattr(verification, "verify_rejection", verify_rejection_reference)
    made = rejection([1.0] * requests, drafts=1, seeds=range(requests))
    draft_logits = torch.full((requests, 1, COLUMNS), MASKED)
    draft_logits[:, 0, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    target = torch.full((COLUMNS,), MASKED)
    target[1:4] = torch.tensor([0.2, 0.3, 0.5]).log()  # token 0 is forbidden
    torch.manual_seed(0)
    drafts = torch.multinomial(draft_logits[0, 0].exp(), requests, replacement=True)
    fed = torch.stack([torch.zeros_like(drafts), drafts], 1).flatten().int()
    valid = fed.clone()
    valid[1::2] = torch.where(drafts == 0, -1, drafts).int()
    positions = torch.arange(2 * requests) + 7
    verify = verification.wrap_verify_in_chunks(None)
    rows = target.expand(2 * requests, COLUMNS)
    slots = list(range(requests))
    sampled, *_ = verify(made, rows, batch(slots, 1), draft_logits, fed, positions, 10, -1, valid)
    return torch.bincount(sampled[:, 0], minlength=4)[1:4]


def test_behind_a_forbidden_draft_the_law_is_the_targets(monkeypatch):
    """With -1 for the draft, vLLM's rule, the first of the other tokens comes too often."""
    expected = torch.tensor([0.2, 0.3, 0.5]).double()
    found = emitted_under_a_grammar(monkeypatch, 2000, keeps_tokens=True)
    assert chi_square_chance(found, expected) > LEAST_CHANCE
    found = emitted_under_a_grammar(monkeypatch, 2000, keeps_tokens=False)
    assert chi_square_chance(found, expected) < LEAST_CHANCE


def in_block_mode(made):
    made.use_block_verification = True
    return made


@pytest.mark.parametrize("drafted", [None, torch.zeros(4, 2, COLUMNS)], ids=["given", "sampled"])
def test_in_block_mode_a_sampled_batch_is_verified_as_a_block_with_the_same_arguments(monkeypatch, drafted):
    temperature, cut = (0, 0.8, 1.0, 0), {"top_p": [1, 0.9, 1, 1]}
    _, [(name, given, named)] = called(
        monkeypatch, in_block_mode(rejection(temperature, **cut)), [3, 1], drafted
    )
    assert name == "verify_block"
    _, [(name, given_by_token, named_by_token)] = called(
        monkeypatch, rejection(temperature, **cut), [3, 1], drafted
    )
    assert name == "verify_rejection"
    assert [str(one) for one in given] == [str(one) for one in given_by_token]
    assert named.keys() == named_by_token.keys()
    assert named["draft_logits"] is drafted
    assert verified_batches.batches.snapshot() == {"batches_verified_by_specctl": 2.0}


def test_in_block_mode_a_sampled_batch_is_vllms_unless_ours_was_asked_for(monkeypatch):
    made = in_block_mode(rejection((0, 0.8, 1.0, 0)))
    verification.scope.block = False
    assert why(made, (3, 1)) == "block"
    assert why(made, (3, 0)) is None, "both are greedy"


def test_in_block_mode_a_greedy_batch_takes_the_smaller_kernel(monkeypatch):
    _, [(name, _, _)] = called(monkeypatch, in_block_mode(rejection()), [3, 1], torch.zeros(4, 2, COLUMNS))
    assert name == "verify_greedy"


def test_in_block_mode_sampled_batches_are_the_engines_unless_asked_for():
    verification.scope.sampled = False
    made = in_block_mode(rejection((0, 0.8, 0, 0)))
    assert why(made, drafted=torch.zeros(4, 2, COLUMNS)) == "sampled"


@pytest.mark.parametrize("verifier", ["verify_rejection", "verify_block"])
def test_both_kernels_take_what_they_are_given(verifier):
    """By name and by place."""
    names = [
        *("logits", "drafts", "starts", "sampling", "positions"),
        *("width", "not_finite", "draft_logits", "draft_slots", "uniforms", "slots"),
    ]
    assert list(inspect.signature(getattr(verification, verifier)).parameters) == names


@pytest.mark.parametrize(
    "cut", [{"top_k": [100, 5, 100, 100]}, {"top_p": [1, 0.9, 1, 1]}, {"min_p": [0, 0.1, 0, 0]}]
)
def test_cuts_are_given_where_a_request_of_the_batch_has_one(monkeypatch, cut):
    made = rejection((0, 0.8, 1.0, 0), **cut)
    states = made.sampler.sampling_states
    _, [(_, given, _)] = called(monkeypatch, made, [2, 1])
    assert all(
        a is b.gpu for a, b in zip(given[3][1:4], (states.top_k, states.top_p, states.min_p), strict=True)
    )
    _, [(_, given, named)] = called(monkeypatch, made, [0, 2])
    assert given[3][1:4] == (None, None, None)
    assert named["draft_slots"] is None


def test_the_engine_takes_what_ours_refuse(monkeypatch):
    answer, calls = called(monkeypatch, rejection(), [0], fails=ValueError("expected, got"))
    assert answer[0] == "engine"
    assert len(answer) == 9
    assert calls == []
    answer, _ = called(monkeypatch, use(rejection(), 0, "penalties"), [0])
    assert answer[0] == "engine"
    assert verified_batches.batches.snapshot() == {
        "batches_verified_by_engine_unexpected_layout": 1.0,
        "batches_verified_by_engine_penalties": 1.0,
    }


def test_a_failure_of_ours_leaves_this_and_every_later_batch_to_the_engine(monkeypatch):
    answer, _ = called(monkeypatch, rejection(), [0], fails=RuntimeError("no such instruction"))
    assert answer[0] == "engine"
    assert (verification.scope.greedy, verification.scope.sampled) == (False, False)
    broken = with_sampler(rejection(), thinking_budget_state=None)
    verification.scope.greedy = True
    answer, _ = called(monkeypatch, use_any(broken, 0), [0])
    assert answer[0] == "engine"
    assert verified_batches.batches.snapshot() == {"batches_verified_by_engine_failed": 2.0}
    assert GUARD.failures.total() == 2
    GUARD.failures.clear()


def use_any(made, slot):
    made.sampler.needs_logits_processing[slot] = True
    return made


def test_rows_that_are_not_finite_are_reported_some_batches_later():
    device_count = verified_batches.not_finite_on(torch.device("cpu"))
    device_count += 3
    for _ in range(2 * verified_batches._READ_EVERY):
        verified_batches.count(None)
    assert verified_batches.batches.snapshot()["requests_with_logits_not_finite"] == 3.0


@pytest.mark.parametrize(
    ("asked", "ours", "blocks"),
    [
        ({"method": "specctl_suffix"}, True, False),
        ({"method": "specctl_suffix", "specctl": {"verify": "engine"}}, False, False),
        ({"method": "specctl_suffix", "specctl": {"verify": "specctl"}}, True, True),
        ({"method": "ngram_gpu", "num_speculative_tokens": 4, "specctl": {}}, False, False),
        ({"method": "ngram_gpu", "num_speculative_tokens": 4, "specctl": {"verify": "specctl"}}, True, True),
    ],
)
def test_ours_verify_our_methods_and_others_where_asked(asked, ours, blocks):
    parsed = parse_speculative_config(asked, on_device=True)
    assert parsed is not None
    assert (parsed[1].verifies_itself(), parsed[1].verifies_blocks()) == (ours, blocks)


def test_another_verifier_is_refused():
    with pytest.raises(ValueError, match=r"specctl\.verify"):
        parse_speculative_config({"method": "specctl_suffix", "specctl": {"verify": "mine"}})
