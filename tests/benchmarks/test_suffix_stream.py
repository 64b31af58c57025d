import numpy as np
import pytest

from benchmarks import suffix_stream
from benchmarks.suffix_stream import (
    MAX_CONTEXT_TOKENS,
    MAX_RESPONSE_TOKENS,
    Tokens,
    code_files,
    code_requests,
    cut_request,
    hold_back_packages,
    package_of,
    pieces,
    spread,
    turns_of,
    up_to,
)


@pytest.fixture
def site(tmp_path):
    """Twelve packages of medium size, a copy of one of them, and a file too large."""
    for package in "abcdefghijkl":
        for name in ("one", "two"):
            lines = [f"def {package}_{name}_{i}(value):\n    return value + {i}\n" for i in range(2_000)]
            _write(tmp_path / package / f"{name}.py", "".join(lines))
    _write(tmp_path / "a" / "_vendor" / "copy.py", "x = 1\n" * 100)
    _write(tmp_path / "m" / "huge.py", "x = 1\n" * 100_000)
    return tmp_path


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_files_have_one_order_and_no_copies(site):
    files = code_files([site])
    assert [file.path for file in files] == [file.path for file in code_files([site])]
    assert {file.path.name for file in files} == {"one.py", "two.py"}
    assert [file.package for file in files] != sorted(file.package for file in files)


def test_whole_packages_are_held_back(site, tmp_path):
    files = code_files([site])
    assert len(hold_back_packages(files, 4)) == 2
    tokens = Tokens([site], tmp_path / "cache")
    assert {file.package for file in tokens.files}.isdisjoint(file.package for file in tokens.aside)


def test_packages_that_differ_in_a_number_are_one():
    assert package_of("httpx2") == package_of("httpx") == "httpx"
    assert package_of("six.py") == "six"


def test_tokens_come_from_the_cache_the_second_time(site, tmp_path, monkeypatch):
    monkeypatch.setattr(suffix_stream, "VOCABULARY", 400)
    first = Tokens([site], tmp_path / "cache").code(5_000)
    monkeypatch.setattr(suffix_stream, "train", None)
    monkeypatch.setattr(Tokens, "_encode_files", None)
    tokens = Tokens([site], tmp_path / "cache")
    again = tokens.code(5_000)
    assert len(first) == len(again)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert sum(ids.size for ids in again) >= 5_000
    requests = code_requests(tokens, 4)
    assert len(requests) == 4
    assert all(0 < request.prompt.size <= MAX_CONTEXT_TOKENS for request in requests)
    assert all(0 < request.output.size <= MAX_RESPONSE_TOKENS for request in requests)


def test_pieces_keep_every_token_but_a_short_rest():
    tokens = np.arange(2 * MAX_RESPONSE_TOKENS + 3, dtype=np.int32)
    parts = list(pieces(tokens))
    assert [part.size for part in parts] == [MAX_RESPONSE_TOKENS] * 2
    assert np.array_equal(np.concatenate(parts), tokens[:-3])


def test_a_corpus_has_exactly_the_tokens_asked_for():
    parts = [np.full(10, i, np.int32) for i in range(5)]
    assert [part.size for part in up_to(parts, 25)] == [10, 10, 5]
    assert up_to(parts, 0) == []


def test_spread_keeps_both_orders():
    few = [np.array([i]) for i in (0, 1)]
    many = [np.array([i]) for i in range(10, 16)]
    order = [int(part[0]) for part in spread(few, many)]
    assert [i for i in order if i < 10] == [0, 1]
    assert [i for i in order if i >= 10] == list(range(10, 16))
    assert order.index(1) - order.index(0) == 4


def test_a_request_keeps_the_end_of_its_context_and_the_start_of_its_output():
    ids = np.arange(10_000, dtype=np.int32)
    request = cut_request("code", ids, ids)
    assert request.prompt.size == MAX_CONTEXT_TOKENS
    assert request.prompt[-1] == 9_999
    assert request.output.tolist() == list(range(MAX_RESPONSE_TOKENS))


def test_each_assistant_turn_has_what_came_before_as_its_context():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": None, "tool_calls": [1]},
    ]
    assert list(turns_of(messages)) == [
        ("\n[user]\na", "b"),
        ("\n[user]\na\n[assistant]\nb\n[user]\nc", "[1]"),
    ]
