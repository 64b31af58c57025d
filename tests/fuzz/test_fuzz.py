"""Mutated inputs, and every input that was once taken wrongly. ``SPECCTL_FUZZ_INPUTS``: over all parsers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from fuzz.parsers import PARSERS
from fuzz.run import CASES, Course, failure

INPUTS = int(os.environ.get("SPECCTL_FUZZ_INPUTS", "100000")) // len(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_any_input_is_parsed_or_refused(name: str) -> None:
    course = Course(PARSERS[name], random.Random(1))
    for _ in range(INPUTS):
        wrong, data = course.step()
        assert not wrong, data
    assert len(course.shapes) > 1


@pytest.mark.parametrize("case", sorted(CASES.iterdir()), ids=lambda case: case.name)
def test_inputs_that_were_once_taken_wrongly(case: Path) -> None:
    assert failure(PARSERS[case.name.partition("-")[0]], case.read_bytes())[0] == ""


@pytest.mark.parametrize("name", PARSERS)
def test_the_sound_inputs_are_taken(name: str) -> None:
    parser = PARSERS[name]
    for seed in parser.seeds:
        parser.parse(seed)
