"""Faults on a real vLLM server and its daemon, under requests.

``python -m testing.faults`` runs longer courses, which kill the server too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_control import Control

from testing.faults import COMMON, course, run

pytestmark = pytest.mark.engine

SEQUENCES = (
    ("relay cut", "garbage", "relay half-open"),
    ("stop the server", "full disk", "relay garbage"),
    ("kill the daemon", "races", "stop the daemon"),
)


def test_nothing_is_lost_by_faults(suffix: Control, tmp_path: Path) -> None:
    assert {name for names in SEQUENCES for name in names} <= COMMON
    with course(tmp_path, 1, suffix.server) as (made, relayed):
        run(made, relayed, SEQUENCES)
    assert sum(made.answers.values()) > 10
    assert suffix.get("table")["rows"] == suffix.get("table")["start_rows"]
