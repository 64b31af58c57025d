"""Faults on a real vLLM server and its daemon, under requests.

``python -m testing.faults`` runs longer courses, which kill the server too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine_control import Control, controlled_server, suffix_with_corpus

from testing.faults import COMMON, course, run

pytestmark = pytest.mark.engine

SEQUENCES = (
    ("relay cut", "garbage", "relay half-open"),
    ("stop the server", "full disk", "relay garbage"),
    ("kill the daemon", "races", "stop the daemon"),
)


@pytest.fixture(scope="module")
def suffix(target_model: Path, logs: Path) -> Iterator[Control]:
    config = suffix_with_corpus(logs / "faults-corpus")
    with controlled_server(target_model, logs / "faults.log", config) as control:
        yield control


def test_nothing_is_lost_by_faults(suffix: Control, tmp_path: Path) -> None:
    assert {name for names in SEQUENCES for name in names} <= COMMON
    with course(tmp_path, 1, suffix.server) as (made, relayed):
        run(made, relayed, SEQUENCES)
    assert sum(made.answers.values()) > 10
    assert suffix.get("table")["rows"] == suffix.get("table")["start_rows"]
