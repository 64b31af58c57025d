"""Which batches specctl's verify kernels take from SGLang, and what becomes of those that they do not."""

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")
import torch
from specctl_kernels.verify_tree import compiled_rows
from specctl_sglang import register
from specctl_sglang.compat import machine, verification
from specctl_sglang.compat.verification import EngineSettings, why_engine
from specctl_sglang.compat.verified_batches import batches
from specctl_sglang.options import OPTIONS_ENV, Options
from support.sglang_batches import NgramVerifyInput, batch_of, sampling_of

from specctl.engine.guard import FAILURES_MAX, GUARD

SETTINGS = EngineSettings(
    is_simulated=False,
    has_dp_attention=False,
    has_sampled_drafts=False,
    accept_thresholds=(1.0, 1.0),
    full_rows=4,
)
GREEDY, SAMPLED = {"top_k": [1, 1]}, {"temperature": [0.8, 1.2]}
DRAFTS = NgramVerifyInput(draft_token_num=4)


def why(options, *, drafts=DRAFTS, grammar=None, uno=None, settings=SETTINGS, batch=None, **sampling):
    info = sampling_of(2, **options)
    for name, value in sampling.items():
        setattr(info, name, value)
    made = batch_of(info)
    for name, value in (batch or {}).items():
        setattr(made, name, value)
    return why_engine(drafts, made, grammar, uno, settings)


def settings(**changed):
    return EngineSettings(**{name: getattr(SETTINGS, name) for name in SETTINGS.__slots__} | changed)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    batches.counts.clear()
    monkeypatch.setattr(verification, "_compiled", set())
    monkeypatch.setattr(verification, "_engine_settings", lambda: SETTINGS)
    monkeypatch.setattr(verification, "_sanitize", lambda logits: None)


@pytest.mark.parametrize(
    "options",
    [
        GREEDY,
        SAMPLED,
        {"top_k": [1, 5], "top_p": [0.9, 0.8]},
        {"min_p": [0.1, 0.0]},
        {"min_p": [0.1, 0.0], "top_p": [1.0, 0.9]},
        {"min_p": [0.1, 0.0], "top_k": [4, 4]},
    ],
    ids=["greedy", "sampled", "mixed", "min_p", "min_p beside top_p", "min_p and top_k"],
)
def test_batches_of_ours(options):
    assert why(options) is None


class EagleVerifyInput(SimpleNamespace):
    pass


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("reason", "given"),
    [
        ("unknown_drafts", {"drafts": SimpleNamespace()}),
        ("simulated_acceptance", {"settings": settings(is_simulated=True)}),
        ("dp_attention", {"settings": settings(has_dp_attention=True)}),
        ("sampled_drafts", {"settings": settings(has_sampled_drafts=True)}),
        ("sampled_drafts", {"drafts": EagleVerifyInput(draft_probs=torch.ones(1))}),
        ("uno", {"uno": 8}),
        ("grammar", {"grammar": object()}),
        ("grammar", {"grammar_mask": object()}),
        ("logprobs", {"batch": {"return_logprob": True}}),
        ("penalties", {"acc_additive_penalties": torch.zeros(2, 3)}),
        ("penalties", {"acc_scaling_penalties": torch.zeros(2, 3)}),
        ("penalties", {"penalizer_orchestrator": SimpleNamespace(is_required=True)}),
        ("logit_bias", {"logit_bias": torch.zeros(2, 3)}),
        ("logit_processor", {"has_custom_logit_processor": True}),
        ("sampling_mask", {"return_sampling_masks": [False, True]}),
    ],
)
def test_what_ours_do_not_cover_is_sglangs(reason, given, options):
    assert why(options, **given) == reason


def test_a_head_that_gives_its_top_tokens_is_ours():
    assert why(SAMPLED, drafts=EagleVerifyInput(draft_probs=None)) is None


def test_lossy_thresholds_are_sglangs_where_they_matter():
    lossy = settings(accept_thresholds=(1.0, 0.9))
    assert why(SAMPLED, settings=lossy) == "accept_thresholds"
    assert why(GREEDY, settings=lossy) is None


def test_an_order_of_cuts_that_is_not_ours():
    assert why({"min_p": [0.1, 0.0], "top_p": [0.9, 1.0]}) == "min_p_with_top_p"


def call(monkeypatch, options, *, found=None, sample=verification._sampled_by_ours, **changed):
    """(answer, what SGLang's function was called with)."""
    called = []

    def original(*given):
        called.append(given)
        return "engine"

    def verified(drafts, sampling, logits):
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(verification, "verified", verified)
    batch = batch_of(sampling_of(2, **options))
    for name, value in changed.items():
        setattr(batch, name, value)
    output = SimpleNamespace(next_token_logits=torch.zeros(8, 3))
    return sample(original, DRAFTS, batch, output), called


FOUND = (torch.arange(8), torch.tensor([3, 1]), torch.zeros(2, 4))


def ranks(monkeypatch, world_size):
    """What is sent, and made one more on the way."""
    sent = []

    def broadcast(result, src):
        assert src == 0
        sent.append(result.clone())
        result += 1

    group = SimpleNamespace(world_size=world_size, broadcast=broadcast)
    monkeypatch.setattr(verification, "_ranks", lambda: group)
    return sent


def test_the_first_ranks_samples_are_everyones(monkeypatch):
    sent = ranks(monkeypatch, 2)
    found = tuple(one.clone() for one in FOUND)
    answer, called = call(monkeypatch, SAMPLED, found=found)
    assert called == []
    # In the order in which SGLang sends its own, and what it sends: accepted drafts.
    wanted = (FOUND[0], FOUND[2], torch.tensor([2, 0]))
    assert all(torch.equal(one, other) for one, other in zip(sent, wanted, strict=True))
    assert all(torch.equal(one, other + 1) for one, other in zip(answer, FOUND, strict=True))
    call(monkeypatch, GREEDY, found=FOUND)
    assert len(sent) == 3, "greedy results are the same on every rank"
    assert batches.snapshot() == {"batches_verified_by_specctl": 2.0}


def test_a_rank_alone_sends_nothing(monkeypatch):
    sent = ranks(monkeypatch, 1)
    answer, _ = call(monkeypatch, SAMPLED, found=FOUND)
    assert all(one is other for one, other in zip(answer, FOUND, strict=True))
    assert sent == []


def test_each_seed_is_given_once_at_whole_16_bytes():
    drawn = verification._Drawn(at_once=16)
    device = torch.device("cpu")
    torch.manual_seed(0)
    taken = [drawn.take(requests, device) for requests in (1, 3, 8, 16, 5, 40, 2)]
    assert [len(one) for one in taken] == [1, 3, 8, 16, 5, 40, 2]
    assert all((one.data_ptr() - one.untyped_storage().data_ptr()) % 16 == 0 for one in taken)
    seeds = torch.cat(taken)
    assert len(seeds.unique()) == len(seeds)
    assert int(seeds.min()) >= 0


def test_what_is_sglangs_goes_to_it_as_it_came(monkeypatch):
    answer, called = call(monkeypatch, GREEDY, return_logprob=True)
    assert answer == "engine"
    assert called[0][0] is DRAFTS
    assert called[0][3:] == (None, None)
    assert batches.snapshot() == {"batches_verified_by_engine_logprobs": 1.0}


def test_an_idle_batch_is_not_counted(monkeypatch):
    answer, _ = call(monkeypatch, GREEDY, forward_mode=SimpleNamespace(is_idle=lambda: True))
    assert answer == "engine"
    assert batches.snapshot() == {}


def test_after_failures_sglang_verifies_and_the_log_says_it_once(monkeypatch, caplog):
    for found in (*[RuntimeError("no such kernel")] * FAILURES_MAX, FOUND):
        answer, called = call(monkeypatch, SAMPLED, found=found)
        assert (answer, len(called)) == ("engine", 1)
    assert batches.snapshot() == {"batches_verified_by_engine_failed": FAILURES_MAX + 1.0}
    assert caplog.text.count("eagle_sample failed; this step goes on without it") == 1
    GUARD.failures.clear()


def test_one_kernel_for_a_few_numbers_of_rows():
    assert [compiled_rows(rows) for rows in (1, 2, 3, 9, 16, 17)] == [16, 16, 16, 16, 16, 32]


def test_our_algorithms_are_verified_by_us_unless_told_otherwise():
    variants = {name: Options(verify=name) for name in (None, "specctl", "engine")}
    algorithms = "SPECCTL_SUFFIX", "specctl_peagle", "NGRAM", "", "DFLASH"
    asked = {name: [one for one in algorithms if options.verifies(one)] for name, options in variants.items()}
    assert asked == {
        None: ["SPECCTL_SUFFIX", "specctl_peagle"],
        "specctl": ["SPECCTL_SUFFIX", "specctl_peagle", "NGRAM", ""],
        "engine": [],
    }


@pytest.mark.parametrize(("algorithm", "verifier"), [("SPECCTL_SUFFIX", "ours"), ("EAGLE3", "engine")])
def test_stock_algorithms_are_sglangs_where_nothing_is_asked(monkeypatch, algorithm, verifier):
    spec = SimpleNamespace(speculative_algorithm=algorithm)
    context = SimpleNamespace(get_spec=lambda: spec)
    verification._is_asked_for.cache_clear()
    monkeypatch.setattr(verification, "_engine", lambda: SimpleNamespace(context=context))
    monkeypatch.setattr(verification, "_options", Options())
    ranks(monkeypatch, 1)
    sample = verification._sampled_where_asked_for
    answer, called = call(monkeypatch, SAMPLED, found=FOUND, sample=sample)
    verification._is_asked_for.cache_clear()
    assert (answer == "engine", len(called)) == ((True, 1) if verifier == "engine" else (False, 0))
    assert bool(batches.snapshot()) == (verifier == "ours")


@pytest.mark.parametrize(
    ("options", "batch", "is_asked", "is_ours"),
    [
        ({"min_p": [0.1, 0.0]}, {}, True, True),
        ({"min_p": [0.1, 0.0]}, {}, False, False),
        ({"min_p": [0.1, 0.0]}, {"has_grammar": True}, True, False),
        ({"min_p": [0.1, 0.0]}, {"return_logprob": True}, True, False),
        ({"min_p": [0.1, 0.0], "top_p": [0.9, 1.0]}, {}, True, False),
    ],
    ids=["min_p", "not asked for", "grammar", "log probabilities", "min_p and top_p"],
)
def test_whose_a_batch_will_be_is_known_ahead(monkeypatch, options, batch, is_asked, is_ours):
    made = batch_of(sampling_of(2, **options))
    made.__dict__.update(batch)
    monkeypatch.setattr(verification, "_is_asked_for", lambda: is_asked)
    assert verification.is_verified_by_ours(made) is is_ours


def test_without_a_gpu_it_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setenv(OPTIONS_ENV, '{"verify": "specctl"}')
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    with pytest.raises(SystemExit, match="verify: specctl needs an NVIDIA GPU"):
        register.register()


def test_what_is_not_asked_for_is_not_refused(monkeypatch):
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    for options in (None, Options(), Options(verify="engine")):
        register._refuse_verify_without_gpu(options)
        register._install_verification(options or Options())


@pytest.mark.parametrize(
    ("named", "is_wanted", "verifier"),
    [
        ({"watermark_state": None}, True, "batches_verified_by_specctl"),
        ({"watermark_state": object(), "watermark_full_mask": False}, False, "batches_verified_by_specctl"),
        ({"watermark_state": object()}, True, "batches_verified_by_engine_watermark"),
    ],
    ids=["no watermarks", "nobody asks", "asked for"],
)
def test_a_watermark_is_sglangs_and_what_its_callers_name_is_taken(monkeypatch, named, is_wanted, verifier):
    seen = []
    monkeypatch.setattr(verification, "verified", lambda *_: FOUND)
    batch = batch_of(sampling_of(2, **GREEDY))
    batch.sampling_info.has_watermark_candidates = is_wanted
    output = SimpleNamespace(next_token_logits=torch.zeros(8, 3))
    verification._sampled_by_ours(
        lambda *given, **more: seen.append(more),
        DRAFTS,
        batch,
        output,
        None,
        uno_target_max_top_k=None,
        **named,
    )
    assert batches.snapshot() == {verifier: 1.0}
    assert seen == ([named] if verifier.endswith("watermark") else [])


def result_of(dtype):
    logits = SimpleNamespace(dtype=dtype, is_cuda=True)
    return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_kernels_are_compiled_with_the_first_prompt_for_each_dtype(monkeypatch, is_asked_for):
    compiled = []
    monkeypatch.setattr(verification, "_is_asked_for", lambda: is_asked_for)
    monkeypatch.setattr(verification, "_compile", lambda logits, *sizes: compiled.append(logits.dtype))
    for dtype in (torch.float32, torch.float32, torch.bfloat16):
        verification.compile_ahead(result_of(dtype))
    verification.compile_ahead(SimpleNamespace(logits_output=None))
    assert set(compiled) == ({torch.float32, torch.bfloat16} if is_asked_for else set())
    assert compiled == sorted(compiled, key=lambda dtype: dtype == torch.bfloat16)
    assert compiled.count(torch.float32) == compiled.count(torch.bfloat16)


def test_what_compiling_ahead_raises_is_counted(monkeypatch):
    def fail(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(verification, "_is_asked_for", lambda: True)
    monkeypatch.setattr(verification, "_compile", fail)
    verification.compile_ahead(result_of(torch.float32))
    assert GUARD.failures == {"eagle_sample": 1}
    GUARD.failures.clear()
