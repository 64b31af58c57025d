"""When a hybrid's draft head reads nothing, and who has suffix drafts alone then."""

from itertools import count

from specctl_vllm.proposers.head_sleep import HeadSleep

IDS = ["a", "b"]
STEP_S = 0.03


def run(sleep, steps, *, worth=0.0, read_share=0.1, ids=IDS):
    """The number of steps in which the head read."""
    read = 0
    for _ in range(steps):
        whole = sleep.begin(ids)
        sleep.drafted(worth)
        sleep.timed(STEP_S, 0.0 if sleep.is_asleep else read_share * STEP_S)
        read += not sleep.is_asleep
        assert not sleep.is_asleep or not whole.any()
    return read


def began(requests=50, cached_tokens=0):
    sleep = HeadSleep()
    for _ in range(requests):
        sleep.start(cached_tokens)
    return sleep


def test_a_head_that_brings_nothing_sleeps():
    sleep = began()
    assert run(sleep, 2000) < 600
    assert sleep.is_asleep


def test_a_head_whose_drafts_are_worth_its_reading_reads():
    assert run(began(), 3000, worth=0.2) == 3000


def test_a_head_that_takes_little_reads():
    assert run(began(), 3000, read_share=0.03) == 3000


def test_it_wakes_once_its_drafts_would_be_worth_it():
    sleep = began()
    run(sleep, 1000)
    assert next(steps for steps in count(1) if run(sleep, 1, worth=1.0)) < 60


def test_it_is_tried_again_after_a_while():
    sleep = began()
    run(sleep, 1000)
    assert 512 <= run(sleep, 4600) < 1200


def test_requests_that_it_has_not_read_whole_keep_to_suffix_drafts_until_they_end():
    sleep = began()
    run(sleep, 1000)
    for _ in range(100):
        whole = sleep.begin([*IDS, "new"]) if not sleep.is_asleep else sleep.begin(IDS)
        sleep.drafted(1.0)
    assert whole.tolist() == [False, False, True]
    sleep.finish(["a"])
    assert sleep.begin(["a", "b"]).tolist() == [True, False]


def test_it_never_sleeps_beside_prompts_from_the_prefix_cache():
    assert run(began(cached_tokens=128), 3000) == 3000


def test_a_prompt_from_the_prefix_cache_wakes_it():
    sleep = began()
    run(sleep, 1000)
    sleep.start(128)
    assert not sleep.is_asleep
    assert run(sleep, 3000) == 3000


def test_steps_without_drafts_tell_nothing_of_their_worth():
    sleep = began()
    for _ in range(3000):
        sleep.begin(IDS)
        sleep.timed(STEP_S, 0.1 * STEP_S)
    assert not sleep.is_asleep
