"""Which batches specctl's verify kernels take from vLLM's sampler."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("triton")
from specctl_vllm.compat import verification
from specctl_vllm.options import parse_speculative_config


def sampler(temperatures, processed=()):
    needs = np.zeros(len(temperatures), dtype=bool)
    needs[list(processed)] = True
    temperature = SimpleNamespace(np=np.array(temperatures, dtype=np.float32))
    return SimpleNamespace(
        needs_logits_processing=needs, sampling_states=SimpleNamespace(temperature=temperature)
    )


@pytest.mark.parametrize(
    ("temperatures", "processed", "requests", "expected"),
    [
        ([0, 0, 0], (), [0, 1, 2], True),
        ([0, 1, 0], (), [0, 1], False),
        ([0, 1, 0], (), [0, 2], True),
        ([0, 0, 0], (1,), [0, 1], False),
        ([0, 0, 0], (1,), [2], True),
        ([1e-6], (), [0], False),
    ],
)
def test_a_batch_is_greedy_where_nobody_wants_more_than_the_largest_logit(
    temperatures, processed, requests, expected
):
    assert verification.is_greedy(sampler(temperatures, processed), np.array(requests)) is expected


@pytest.mark.parametrize(
    ("rates", "watermark", "temperature", "is_ours"),
    [(None, None, 0, True), ([0.5], None, 0, False), (None, 7, 0, False), (None, None, 1, False)],
)
def test_what_ours_do_not_cover_stays_with_the_engine(monkeypatch, rates, watermark, temperature, is_ours):
    calls = []
    monkeypatch.setattr(
        verification, "verify_greedy", lambda *given, **named: calls.append((given, named)) or ("T", "N")
    )
    verify = verification._ours_where_greedy(lambda self, *given: ("engine", *given))
    rejection = SimpleNamespace(
        sampler=sampler([temperature]),
        synthetic_conditional_rates=rates,
        watermark_key=watermark,
        num_speculative_steps=5,
    )
    rows = ["logits", None, "drafts", "pos", "starts", "mapping", np.array([0]), "e", "l", "s", "verified"]
    found = verify(rejection, *rows)
    if is_ours:
        assert found == ("logits", "T", "N")
        assert calls == [(("logits", "verified", "starts"), {"width": 6})]
    else:
        assert found[0] == "engine"
        assert len(found) == 1 + len(rows)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"method": "specctl_suffix"}, True),
        ({"method": "specctl_suffix", "specctl": {"verify": "engine"}}, False),
        ({"method": "ngram_gpu", "num_speculative_tokens": 4, "specctl": {}}, False),
        ({"method": "ngram_gpu", "num_speculative_tokens": 4, "specctl": {"verify": "specctl"}}, True),
    ],
)
def test_ours_verify_our_methods_and_others_where_asked(asked, expected):
    parsed = parse_speculative_config(asked, on_device=True)
    assert parsed is not None
    assert parsed[1].verifies_itself() is expected


def test_another_verifier_is_refused():
    with pytest.raises(ValueError, match=r"specctl\.verify"):
        parse_speculative_config({"method": "specctl_suffix", "specctl": {"verify": "mine"}})
