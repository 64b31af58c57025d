"""The demo's load and arguments are such as ``specctl bench`` takes."""

from __future__ import annotations

import argparse

import pytest

from demo.__main__ import ARMS, LOADS, _arguments
from specctl.bench.arms import parse_arm
from specctl.bench.command import bench
from specctl.bench.loads import parse_load
from specctl.bench.prompts import load_prompts


@pytest.mark.parametrize("text", LOADS)
def test_loads_have_prompts(text: str) -> None:
    assert len(load_prompts(parse_load(text).prompts)) >= 40


def test_arguments_are_known_to_the_command() -> None:
    options = argparse.Namespace(engine="vllm", policy=None, seconds=12.0, rounds=4)
    context = bench.make_context("bench", _arguments("http://127.0.0.1:8000", options))
    assert context.params["arms"] == (*ARMS, "autotune")
    assert context.params["fail_if_behind"] is True
    assert [parse_arm(text).name for text in context.params["arms"]][-1] == "autotune"
