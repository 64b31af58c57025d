"""Whose table it is."""

from __future__ import annotations

import socket

import pytest

from specctl.contract.table import TablePut, uniform_rows
from specctl.engine_api.owner import owner_name


def test_two_processes_of_one_name_and_number_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "hôst" * 40)
    first, second = owner_name("autotune ü" * 30), owner_name("autotune ü" * 30)
    assert first != second
    for owner in (first, second):
        assert TablePut(base_version=0, rows=uniform_rows(0), owner=owner).owner == owner
