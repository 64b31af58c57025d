import numpy as np

from specctl.draft.shadow import ShadowFollower


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def follow(shadow: ShadowFollower, slot: int, *draft: int) -> None:
    shadow.follow(ints(slot), ints(*draft, 0).reshape(1, -1), ints(len(draft)))


def emit(shadow: ShadowFollower, slot: int, *tokens: int) -> None:
    shadow.emit(ints(slot), ints(*tokens), ints(0, len(tokens)))


def test_a_draft_is_followed_over_several_steps() -> None:
    shadow = ShadowFollower(2, 4)
    follow(shadow, 1, 1, 2, 3)
    emit(shadow, 1, 1)
    emit(shadow, 1, 2)
    assert shadow.counts().drafts == 0
    emit(shadow, 1, 9, 9)
    counts = shadow.counts()
    assert (counts.drafts, counts.drafted_at, counts.accepted_at) == (1, (1, 1, 1, 0), (1, 1, 0, 0))


def test_a_whole_draft_counts_when_the_next_token_comes() -> None:
    shadow = ShadowFollower(1, 2)
    follow(shadow, 0, 1, 2)
    emit(shadow, 0, 1, 2)
    assert shadow.counts().drafts == 0
    emit(shadow, 0, 3)
    assert shadow.counts().accepted_at == (1, 1)


def test_no_draft_is_a_draft_of_no_tokens() -> None:
    shadow = ShadowFollower(1, 2)
    follow(shadow, 0)
    emit(shadow, 0, 7)
    counts = shadow.counts()
    assert (counts.drafts, counts.drafted_at) == (1, (0, 0))


def test_the_draft_under_way_stays_and_a_forgotten_one_is_not_counted() -> None:
    shadow = ShadowFollower(1, 2)
    follow(shadow, 0, 1, 2)
    follow(shadow, 0, 5, 5)
    emit(shadow, 0, 1)
    shadow.forget(0)
    emit(shadow, 0, 2)
    assert shadow.counts().drafts == 0


def test_slots_do_not_mix() -> None:
    shadow = ShadowFollower(3, 2)
    shadow.follow(ints(0, 2), ints(1, 2, 3, 4).reshape(2, 2), ints(2, 2))
    shadow.emit(ints(2, 0), ints(3, 9, 1, 2, 8), ints(0, 2, 5))
    assert shadow.counts().accepted_at == (2, 1)
