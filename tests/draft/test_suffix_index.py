"""The index against the documented rule, on random and adversarial streams."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from draft import brute_force

from specctl.draft.suffix_index import DraftBatch, SuffixIndex, SuffixIndexOptions

OPTIONS = SuffixIndexOptions(index_bytes=2**18, min_token_prob=0.05)
BUDGET = 8
PROB_TOLERANCE = 1e-5  # float32 in the batch, float64 in the reference


def ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def one(index: SuffixIndex, slot: int = 0, budget: int = BUDGET) -> DraftBatch:
    return index.propose_batch(ints([slot]), ints([budget]))


def assert_as_brute_force(
    index: SuffixIndex,
    own: Sequence[int],
    corpus: brute_force.Text,
    options: SuffixIndexOptions,
    alive: int | None = None,
    last: Sequence[brute_force.LongMatch] = (),
) -> int:
    """The draft's source. ``last``: of a request for which drafts were proposed before."""
    chances, odds = index.outcomes.chances_of(), index.outcomes.tokens.odds.copy()
    batch = one(index)
    tokens, probs, match, source = brute_force.propose(
        own, corpus, BUDGET, options, alive, chances, last, odds
    )
    length = int(batch.lengths[0])
    assert batch.tokens[0, :length].tolist() == tokens
    assert not batch.tokens[0, length:].any()
    assert (int(batch.match_tokens[0]), int(batch.source[0])) == (match, source)
    np.testing.assert_allclose(batch.probs[0, :length], probs, rtol=PROB_TOLERANCE)
    return source


def fibonacci_word(length: int) -> list[int]:
    short, long = [0], [0, 1]
    while len(long) < length:
        short, long = long, long + short
    return long[:length]


def wide_vocabulary(length: int) -> list[int]:
    generator = random.Random(5)
    pieces = [[generator.randrange(262_144) for _ in range(9)] for _ in range(6)]
    return [token for _ in range(length // 9 + 1) for token in generator.choice(pieces)][:length]


def uniform(vocabulary: int, length: int) -> list[int]:
    generator = random.Random(vocabulary)
    return [generator.randrange(vocabulary) for _ in range(length)]


STREAMS = {
    "all-equal": [7] * 160,
    "period-2": [3, 9] * 80,
    "period-40": list(range(40)) * 4,
    "fibonacci": fibonacci_word(160),
    "vocabulary-262144": wide_vocabulary(160),
    "vocabulary-2": uniform(2, 200),
    "vocabulary-5": uniform(5, 200),
    "vocabulary-97": uniform(97, 200),
    "largest-id": [2**31 - 1, 0] * 20,
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_own_tokens(stream: list[int]) -> None:
    index = SuffixIndex(OPTIONS, 1, 1024)
    prompt = len(stream) // 2
    index.start(0, ints(stream[:prompt]))
    last = brute_force.LongMatch(), brute_force.LongMatch()
    for known in range(prompt, len(stream), 3):
        assert_as_brute_force(index, stream[:known], [], OPTIONS, last=last)
        index.extend(0, ints(stream[known : known + 3]))


def edited(text: list[int], seed: int) -> list[int]:
    """Copied with a token replaced, left out or added about once in nine."""
    generator = random.Random(seed)
    copied: list[int] = []
    for token in text:
        kind, other = generator.randrange(27), generator.randrange(50)
        copied += {0: [], 1: [other], 2: [other, token]}.get(kind, [token])
    return copied


@pytest.mark.parametrize("seed", range(6))
def test_behind_an_edit_the_text_goes_on(seed: int) -> None:
    text = uniform(30, 120)
    stream = text + edited(text, seed)
    index = SuffixIndex(OPTIONS, 1, 1024)
    index.start(0, ints(text))
    last, sources = (brute_force.LongMatch(), brute_force.LongMatch()), []
    for known in range(len(text), len(stream), 1 + seed % 3):
        sources.append(assert_as_brute_force(index, stream[:known], [], OPTIONS, last=last))
        index.extend(0, ints(stream[known : known + 1 + seed % 3]))
    assert sources.count(4) > 3
    assert index.stats()["hits_request_behind_edits"] == sources.count(4)


@pytest.mark.parametrize("seed", range(6))
def test_behind_an_edit_an_earlier_answer_goes_on(seed: int) -> None:
    answers = [uniform(30, 120), uniform(31, 60)]
    stream = edited(answers[0], seed)
    index = SuffixIndex(OPTIONS, 1, 1024)
    for answer in answers:
        index.start(0, ints([1, 2]))
        index.extend(0, ints(answer))
        index.finish(0)
    index.flush()
    index.start(0, ints([]))
    corpus = [token for answer in answers for token in (*answer, None)]
    last, sources = (brute_force.LongMatch(), brute_force.LongMatch()), []
    for known in range(1, len(stream), 1 + seed % 3):
        index.extend(0, ints(stream[index.length(0) : known]))
        sources.append(assert_as_brute_force(index, stream[:known], corpus, OPTIONS, last=last))
    assert sources.count(5) > 3
    assert index.stats()["hits_global_behind_edits"] == sources.count(5)


def test_a_replaced_token_costs_one_step() -> None:
    """Nothing else of the copied text occurs twice, so that its tokens alone would match one at a time."""
    text = list(range(100, 160))
    index = SuffixIndex(OPTIONS, 1, 1024)
    index.start(0, ints([*text, *text[:20]]))
    one(index)
    index.extend(0, ints([7, text[21]]))
    batch = one(index)
    assert batch.source[0] == 4
    assert batch.tokens[0, : batch.lengths[0]].tolist() == text[22 : 22 + BUDGET]


def test_a_slot_forgets_where_its_last_request_went_on() -> None:
    text = list(range(100, 160))
    index = SuffixIndex(OPTIONS, 1, 1024)
    index.start(0, ints([*text, *text[:20]]))
    one(index)
    index.discard(0)
    index.start(0, ints([*range(60), *range(200, 220), 7, 22, 21]))
    assert one(index).source[0] == 1


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_corpus(stream: list[int]) -> None:
    index = SuffixIndex(OPTIONS, 1, 1024)
    corpus: list[int | None] = []
    for start in range(0, len(stream), 37):
        document = stream[start : start + 37]
        index.start(0, ints([1, 2]))
        index.extend(0, ints(document))
        index.finish(0)
        corpus += [*document, None]
    index.flush()
    index.start(0, ints([]))
    last = brute_force.LongMatch(), brute_force.LongMatch()
    for known in range(1, len(stream), 5):
        index.extend(0, ints(stream[index.length(0) : known]))
        assert_as_brute_force(index, stream[:known], corpus, OPTIONS, last=last)


@pytest.mark.parametrize(
    "options",
    [
        SuffixIndexOptions(index_bytes=2**18, min_match_tokens=3, max_match_tokens=5, min_token_prob=0.0),
        SuffixIndexOptions(index_bytes=2**18, min_match_tokens=20, max_match_tokens=40),
        SuffixIndexOptions(index_bytes=2**18, max_spec_factor=0.5, max_spec_offset=1.5),
        SuffixIndexOptions(index_bytes=2**18, max_match_tokens=1, min_token_prob=0.01),
    ],
    ids=["match-3-to-5", "match-20-to-40", "half-factor", "match-1"],
)
def test_options(options: SuffixIndexOptions) -> None:
    stream = STREAMS["vocabulary-2"] + STREAMS["period-40"] + STREAMS["period-40"]
    index = SuffixIndex(options, 1, 1024)
    index.start(0, ints([]))
    last = brute_force.LongMatch(), brute_force.LongMatch()
    for known in range(0, len(stream), 4):
        if known:
            assert_as_brute_force(index, stream[:known], [], options, last=last)
        index.extend(0, ints(stream[known : known + 4]))


def test_an_evicted_text_is_never_proposed() -> None:
    options = SuffixIndexOptions(index_bytes=2**16, min_token_prob=0.05)
    index = SuffixIndex(options, 1, 1024)
    stream = uniform(4, 12_000)
    corpus: list[int | None] = []
    for start in range(0, len(stream), 100):
        index.start(0, ints([]))
        index.extend(0, ints(stream[start : start + 100]))
        index.finish(0)
        index.flush()
        corpus += [*stream[start : start + 100], None]
        assert index.corpus_bytes <= options.index_bytes
        if start % 700 == 0:
            alive = int(index.stats()["corpus_tokens"])
            own = stream[start : start + 30]
            index.start(0, ints(own))
            assert_as_brute_force(index, own, corpus, options, alive)
            index.discard(0)
    assert index.stats()["corpus_evicted_tokens"] > 9_000


def test_nothing_known_gives_no_draft() -> None:
    index = SuffixIndex(OPTIONS, 2, 64)
    index.start(0, ints([]))
    index.start(1, ints([5]))
    batch = index.propose_batch(ints([0, 1]), ints([4, 4]))
    assert batch.lengths.tolist() == [0, 0]
    assert batch.source.tolist() == [0, 0]
    assert batch.tokens.shape == batch.probs.shape == (2, 4)


def test_an_empty_batch_and_budgets_of_zero() -> None:
    index = SuffixIndex(OPTIONS, 2, 64)
    index.start(0, ints([1, 1, 1, 1]))
    assert index.propose_batch(ints([]), ints([])).tokens.shape == (0, 0)
    assert one(index, budget=0).tokens.shape == (1, 0)
    index.extend_batch(ints([]), ints([]), ints([0]))


def test_each_row_keeps_to_its_own_budget() -> None:
    index = SuffixIndex(OPTIONS, 3, 256)
    for slot in range(3):
        index.start(slot, ints(list(range(20)) * 3))
    batch = index.propose_batch(ints([2, 0, 1]), ints([5, 0, 2]))
    assert batch.lengths.tolist() == [5, 0, 2]
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 4], [0] * 5, [0, 1, 0, 0, 0]]


def test_slots_see_only_their_own_text_and_finished_outputs() -> None:
    index = SuffixIndex(OPTIONS, 3, 256)
    secret = list(range(100, 130))
    index.start(0, ints(secret))
    index.extend(0, ints([1, 2, 3, 4, 5, 6]))
    index.start(1, ints(secret[:10]))
    assert one(index, 1).lengths[0] == 0
    index.discard(0)
    index.start(0, ints(secret))
    index.extend(0, ints([1, 2, 3, 4, 5, 6]))
    index.finish(0)
    index.flush()
    assert one(index, 1).lengths[0] == 0, "a prompt never joins the corpus"
    index.start(2, ints([50, 1, 2, 3]))
    batch = one(index, 2)
    assert batch.tokens[0, : batch.lengths[0]].tolist() == [4, 5]
    assert batch.source[0] == 2


def test_without_a_corpus_nothing_is_shared() -> None:
    index = SuffixIndex(SuffixIndexOptions(use_global=False), 1, 256)
    index.start(0, ints([]))
    index.extend(0, ints([1, 2, 3, 4, 5, 6]))
    index.finish(0)
    index.start(0, ints([1, 2, 3]))
    assert one(index).lengths[0] == 0
    assert index.corpus_bytes == 0


def test_a_batch_equals_single_calls() -> None:
    streams = list(STREAMS.values())
    together, apart = (SuffixIndex(OPTIONS, len(streams), 512) for _ in range(2))
    slots = np.arange(len(streams), dtype=np.int32)
    for slot, stream in enumerate(streams):
        together.start(slot, ints(stream[:20]))
        apart.start(slot, ints(stream[:20]))
        apart.extend(slot, ints(stream[20 : 20 + slot]))
    parts = [stream[20 : 20 + slot] for slot, stream in enumerate(streams)]
    offsets = ints([0, *np.cumsum([len(part) for part in parts])])
    together.extend_batch(slots, np.concatenate([ints(part) for part in parts]), offsets)
    batch = together.propose_batch(slots, np.full(len(streams), BUDGET, np.int32))
    for slot in range(len(streams)):
        single = one(apart, slot)
        assert single.tokens[0].tolist() == batch.tokens[slot].tolist()
        assert single.probs[0].tolist() == batch.probs[slot].tolist()


@pytest.mark.parametrize("budget", [0, 1, 5, 30])
def test_one_request_is_proposed_as_in_a_batch(budget: int) -> None:
    index = SuffixIndex(OPTIONS, 2, 512)
    index.start(0, ints([]))
    index.extend(0, ints(uniform(3, 200)))
    index.finish(0)
    for stream in STREAMS.values():
        index.start(1, ints(stream[:100]))
        for min_prob in (None, 0.0, 0.3):
            least = None if min_prob is None else np.array([min_prob])
            batch = index.propose_batch(ints([1]), ints([budget]), least)
            tokens, probs = batch.tokens[0].tolist(), batch.probs[0].tolist()
            length = int(batch.lengths[0])
            draft = index.propose(1, budget, min_prob)
            assert draft[0].tolist() == tokens[:length]
            assert draft[1].tolist() == probs[:length]
        index.discard(1)


def test_any_kind_of_integers_is_taken() -> None:
    index = SuffixIndex(OPTIONS, 2, 512)
    text = ints([1, 2, 3, 4] * 5)
    text.flags.writeable = False
    index.start(np.int32(0), text)
    index.extend(np.int64(0), ints([1, 2] * 8)[::2])
    strided = np.zeros(4, np.int32)[::2]
    assert index.propose_batch(strided[:1], ints([3, 0])[:1]).lengths[0] > 0
    assert index.propose(np.int32(0), np.int64(3))[0].size > 0
    assert index.length(0) == 28


def test_a_request_grows_to_its_bound_and_no_further() -> None:
    index = SuffixIndex(OPTIONS, 2, 3000)
    index.start(0, ints([]))
    index.start(1, ints([4] * 10))
    for _ in range(30):
        index.extend(0, np.arange(100, dtype=np.int32))
    assert index.length(0) == 3000
    index.flush()
    before = one(index).tokens.tolist()
    with pytest.raises(ValueError, match="at most 3000 tokens in a request, got 3001"):
        index.extend(0, ints([1]))
    assert index.length(0) == 3000
    assert one(index).tokens.tolist() == before
    assert one(index, 1).lengths[0] > 0


def test_memory_of_finished_requests_is_used_again() -> None:
    index = SuffixIndex(SuffixIndexOptions(use_global=False), 4, 4096)
    used = set()
    for _ in range(20):
        for slot in range(4):
            index.start(slot, np.arange(3000, dtype=np.int32))
        for slot in range(4):
            index.discard(slot)
        used.add(index.bytes_used)
    assert len(used) == 1


def test_a_read_only_or_strided_array_is_taken() -> None:
    index = SuffixIndex(OPTIONS, 1, 64)
    prompt = ints([1, 0, 2, 0, 3, 0])[::2]
    index.start(0, prompt)
    frozen = ints([4, 5])
    frozen.flags.writeable = False
    index.extend(0, frozen)
    assert index.length(0) == 5


def started() -> SuffixIndex:
    index = SuffixIndex(OPTIONS, 3, 64)
    index.start(0, ints([1, 2, 3]))
    return index


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i: i.start(0, ints([1])), "slot 0: expected a free slot"),
        (lambda i: i.start(3, ints([1])), "slot: expected 0 to 2, got 3"),
        (lambda i: i.start(-1, ints([1])), "slot: expected 0 to 2, got -1"),
        (lambda i: i.start(1, ints([-1])), "prompt: expected ids from 0 to 2147483647, got -1"),
        (lambda i: i.start(1, np.zeros(65, np.int32)), "at most 64 tokens in a request, got 65"),
        (lambda i: i.start(1, np.zeros(2, np.int64)), "prompt: .* int32 array, got int64"),
        (lambda i: i.extend(1, ints([1])), "slot 1: expected a started request"),
        (lambda i: i.extend(0, [1, 2]), "tokens: .* int32 array, got list"),
        (lambda i: i.extend(0, ints([4, -7])), "tokens: expected ids from 0 to 2147483647, got -7"),
        (lambda i: i.extend(0, np.zeros((1, 2), np.int32)), r"tokens: .*got int32 of shape \(1, 2\)"),
        (lambda i: i.extend(0, np.zeros(62, np.int32)), "at most 64 tokens in a request, got 65"),
        (lambda i: i.extend_batch(ints([0]), ints([1]), ints([0, 2])), "offsets: expected 2 from 0 to 1"),
        (lambda i: i.extend_batch(ints([0]), ints([1]), ints([1])), "offsets: expected 2 from 0 to 1"),
        (
            lambda i: i.extend_batch(ints([0, 0, 0]), ints([1]), ints([0, 1, 0, 1])),
            "offsets: expected ascending",
        ),
        (lambda i: i.extend_batch(ints([0, 1]), ints([1]), ints([0, 1, 1])), "slot 1: expected a started"),
        (
            lambda i: i.extend_batch(ints([0, 0]), np.zeros(80, np.int32), ints([0, 40, 80])),
            "at most 64 tokens in a request, got 83",
        ),
        (lambda i: i.finish(2), "slot 2: expected a started request"),
        (lambda i: i.discard(9), "slot: expected 0 to 2, got 9"),
        (lambda i: i.length(1), "slot 1: expected a started request"),
        (lambda i: i.propose_batch(ints([0]), ints([1, 2])), "budgets: expected 1 values, got 2"),
        (lambda i: i.propose(0, -2), "budgets: expected values from 0, got -2"),
        (lambda i: i.propose(0, 2, 1.5), "min_probs: expected values from 0 to 1"),
        (lambda i: i.propose(0, 2, float("nan")), "min_probs: expected values from 0 to 1"),
        (lambda i: i.propose(1, 2), "slot 1: expected a started request"),
        (lambda i: i.propose_batch([0], ints([1])), "slots: expected a one-dimensional int32 array"),
        (lambda i: i.propose_batch(np.zeros(1), ints([1])), "slots: expected a one-dimensional int32"),
        (lambda i: i.propose_batch(ints([0]), ints([-2])), "budgets: expected values from 0, got -2"),
        (lambda i: i.propose_batch(ints([0, 5]), ints([1, 1])), "slot: expected 0 to 2, got 5"),
        (lambda i: i.propose_batch(ints([1]), ints([1])), "slot 1: expected a started request"),
    ],
)
def test_a_wrong_argument_is_refused_and_changes_nothing(call, message) -> None:  # type: ignore[no-untyped-def]
    index = started()
    with pytest.raises(ValueError, match=message):
        call(index)
    assert index.length(0) == 3
    index.start(1, ints([1]))
    index.start(2, ints([1]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_token_prob": 1.5}, "min_token_prob: expected a number from 0 to 1, got 1.5"),
        ({"min_token_prob": float("nan")}, "min_token_prob: expected a number from 0 to 1, got nan"),
        ({"max_match_tokens": 2.5}, "max_match_tokens: expected an integer from 1 to 256, got 2.5"),
        ({"min_match_tokens": 40}, "min_match_tokens: expected at most max_match_tokens = 32, got 40"),
        ({"index_bytes": 10}, "index_bytes: expected an integer from 65536"),
        ({"use_global": 1}, "use_global: expected true or false, got 1"),
    ],
)
def test_a_wrong_option_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SuffixIndexOptions(**values)  # type: ignore[arg-type]


def test_counters() -> None:
    index = SuffixIndex(OPTIONS, 1, 256)
    index.start(0, ints(list(range(30)) * 2))
    one(index)
    stats = index.stats()
    assert (stats["proposals"], stats["hits_request"], stats["hits_global"]) == (1, 1, 0)
    assert stats["drafted_request"] == BUDGET
    assert stats["mean_match_tokens"] == 30
    assert stats["corpus_bytes"] + stats["request_bytes"] == index.bytes_used


def test_warm_up_compiles_what_a_request_needs() -> None:
    assert SuffixIndex(OPTIONS, 1, 64).warm_up() > 0
    assert SuffixIndex(OPTIONS, 1, 64).warm_up() < 1.0


def test_the_package_needs_no_numba() -> None:
    program = "import sys, specctl.draft; sys.exit('numba' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
