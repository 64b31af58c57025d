import pytest
from specctl_vllm.methods import method_support


@pytest.mark.parametrize(
    "method", ["ngram", "draft_model", "eagle", "eagle3", "mtp", "deepseek_mtp", "suffix"]
)
def test_stock_methods_take_every_number(method):
    support = method_support(method, method, 3, ranks_in_step=1)
    assert support.legal == (0, 1, 2, 3)
    assert support.why_not_controllable is None
    assert not support.has_shadow_acceptance


def test_our_suffix_tells_its_acceptance_in_the_shadow():
    assert method_support("specctl_suffix", "custom_class", 8, ranks_in_step=1).has_shadow_acceptance


def test_our_suffix_on_the_device_takes_every_number_and_has_no_shadow():
    support = method_support("specctl_suffix", "ngram_gpu", 8, ranks_in_step=1)
    assert support.legal == tuple(range(9))
    assert not support.has_shadow_acceptance


@pytest.mark.parametrize(
    ("asked", "engine", "is_on_device", "beside_prompts", "rests"),
    [
        ("specctl_suffix", "ngram_gpu", True, False, False),
        ("specctl_suffix", "custom_class", False, False, False),
        ("specctl_peagle", "eagle3", True, True, True),
        ("specctl_peagle", "eagle3", False, True, False),
        ("eagle3", "eagle3", True, False, True),
        ("eagle3", "eagle3", False, False, False),
        ("mtp", "mtp", True, False, False),
        ("draft_model", "draft_model", True, True, False),
        ("draft_model", "draft_model", False, False, False),
        ("ngram", "ngram", False, False, False),
        ("suffix", "suffix", False, True, False),
    ],
)
def test_whose_steps_are_kept_apart(asked, engine, is_on_device, beside_prompts, rests):
    """Drafts and prompts in one pass; a head that catches up after 0 drafts."""
    support = method_support(asked, engine, 3, ranks_in_step=1, is_on_device=is_on_device)
    assert (support.drafts_beside_prompts, support.head_rests) == (beside_prompts, rests)
    with_one = method_support(asked, engine, 3, 1, is_on_device, has_one_pass=True)
    assert with_one.drafts_beside_prompts or asked == "specctl_suffix"


@pytest.mark.parametrize("method", ["medusa", "ngram_gpu", "dflash", "custom_class"])
def test_methods_of_a_fixed_number_are_refused_with_the_reason(method):
    support = method_support(method, method, 3, ranks_in_step=1)
    assert support.legal == (3,)
    assert method in support.why_not_controllable


@pytest.mark.parametrize("method", ["ngram_gpu", "dflash", "eagle3"])
def test_on_the_device_the_runner_cuts_what_a_method_drafts(method):
    assert method_support(method, method, 3, ranks_in_step=1, is_on_device=True).legal == (0, 1, 2, 3)


@pytest.mark.parametrize("runner", [{}, {"is_on_device": True}, {"is_on_device": True, "is_async": True}])
def test_ranks_that_step_together_agree(runner):
    """Their heads run in each step, at 0 drafts too."""
    support = method_support("eagle3", "eagle3", 3, ranks_in_step=2, **runner)
    assert (support.legal, support.head_rests) == ((0, 1, 2, 3), False)


def test_ranks_that_step_together_are_refused_where_they_cannot_agree_with_the_reason():
    support = method_support("ngram", "ngram", 3, ranks_in_step=2, is_async=True)
    assert support.legal == (3,)
    assert "data parallel size 2 with a mixture-of-experts model" in support.why_not_controllable
