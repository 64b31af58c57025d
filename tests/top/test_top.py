"""The terminal view, driven by its keys, on the API of a daemon whose loops really run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakes.engine import FakeEngine, Traffic
from support.shown_daemon import CONTROL, READ, ShownDaemon, shown_daemon, write_tokens
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from specctl.errors import TargetError
from specctl.policy.loader import find_policy
from specctl.top import words
from specctl.top.app import TopApp
from specctl.top.command import top
from specctl.top.sources import DaemonSource, ServersSource, Source
from specctl.watch.views import ControlChange, Mode

Course = Callable[[ShownDaemon, Pilot[None]], Awaitable[None]]


def on_engines(count: int, run: Callable[[list[FakeEngine]], Awaitable[None]]) -> None:
    engines = [FakeEngine(start_tokens=4, traffic=Traffic(decode_batch=1 + i), seed=i) for i in range(count)]
    for engine in engines:
        engine.__enter__()
    try:
        asyncio.run(run(engines))  # type: ignore[arg-type]
    finally:
        for engine in engines:
            engine.__exit__(None, None, None)


def watch(folder: Path, course: Course, count: int = 3, token: str = CONTROL, width: int = 140) -> None:
    async def run(engines: list[FakeEngine]) -> None:
        async with shown_daemon(engines, token_file=write_tokens(folder)) as daemon:
            await daemon.run(12)
            source = DaemonSource(daemon.url, token)
            async with TopApp(source).run_test(size=(width, 45)) as pilot:
                await pilot.pause()
                await course(daemon, pilot)
            await source.close()

    on_engines(count, run)


def text_of(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.screen.query_one(f"#{name}", Static).content)


async def until(pilot: Pilot[None], is_true: Callable[[], bool]) -> None:
    for _ in range(100):
        await pilot.app.refresh_figures()  # type: ignore[attr-defined]
        if is_true():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not come true")


def test_servers_are_listed_and_one_is_opened(tmp_path: Path) -> None:
    async def course(daemon: ShownDaemon, pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(DataTable)
        assert table.row_count == 3
        (text,) = table.get_row(daemon.engines[1].url)
        line = [word for word in re.split(r"\s{2,}", str(text).strip()) if word]
        assert line[0] == daemon.engines[1].url.removeprefix("http://")
        assert line[1:5] == ["steered", "fake", "specctl_suffix", "2"]
        assert float(line[7]) > float(line[8]) > 0
        await pilot.press("down", "enter")
        await until(pilot, lambda: daemon.engines[1].url.removeprefix("http://") in text_of(pilot, "head"))
        assert "2 running" in text_of(pilot, "facts")
        assert " 1 ██" in text_of(pilot, "acceptance")
        assert "now" in text_of(pilot, "chart")
        assert "7-8" in text_of(pilot, "buckets")
        assert "->" in text_of(pilot, "decisions")
        assert "specctl_suffix on vllm" in text_of(pilot, "events")
        pilot.app.save_screenshot(str(tmp_path / "details.svg"))
        await pilot.press("escape")
        assert pilot.app.screen.query_one(DataTable)

    watch(tmp_path, course)


@pytest.mark.parametrize(("key", "mode"), [("f", Mode.FREEZE), ("o", Mode.OFF), ("d", Mode.DRY_RUN)])
def test_keys_change_a_server_once_confirmed(tmp_path: Path, key: str, mode: Mode) -> None:
    async def course(daemon: ShownDaemon, pilot: Pilot[None]) -> None:
        (engine,) = daemon.engines
        shown = daemon.board.get(engine.url)
        assert shown is not None
        await pilot.press(key, "n")
        await daemon.run(1)
        assert shown.mode() is Mode.POLICY
        await pilot.press(key, "y")
        await until(pilot, lambda: shown.mode() is mode)
        await daemon.run(2)
        assert (engine.tokens_at(1) == 0) == (mode is Mode.OFF)
        await pilot.press("r", "y")
        await until(pilot, lambda: shown.mode() is Mode.POLICY)

    watch(tmp_path, course, count=1)


def test_a_read_token_changes_nothing(tmp_path: Path) -> None:
    async def course(daemon: ShownDaemon, pilot: Pilot[None]) -> None:
        await pilot.press("o", "y")
        await pilot.pause(0.3)
        shown = daemon.board.get(daemon.engines[0].url)
        assert shown is not None
        assert shown.mode() is Mode.POLICY
        assert any("control is needed" in str(one.message) for one in pilot.app._notifications)

    watch(tmp_path, course, count=1, token=READ)


def test_a_narrow_terminal_shows_the_panels_below_each_other(tmp_path: Path) -> None:
    async def course(daemon: ShownDaemon, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: "running" in text_of(pilot, "facts"))
        panels = [pilot.app.screen.query_one(f"#{name}") for name in ("facts", "chart", "acceptance")]
        assert len({panel.region.x for panel in panels}) == 1

    watch(tmp_path, course, count=1, width=80)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (200, words.COLUMNS),
        (110, [name for name in words.COLUMNS if name != "model"]),
        (76, [name for name in words.COLUMNS if name not in ("model", "method", "if off")]),
    ],
)
def test_a_narrow_terminal_keeps_the_figures(tmp_path: Path, width: int, shown: Sequence[str]) -> None:
    async def course(daemon: ShownDaemon, pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(DataTable)
        (column,) = table.columns.values()
        assert re.split(r"\s{2,}", str(column.label).strip()) == list(shown)
        (line,) = table.get_row(daemon.engines[0].url)
        assert len(str(line)) == len(str(column.label))
        assert "1 server, 1 reachable" in text_of(pilot, "head")

    watch(tmp_path, course, count=1, width=width)


def test_model_and_method_make_room_for_a_reason() -> None:
    wide = tuple(30 if name in ("model", "why") else 8 for name in words.COLUMNS)
    whole = sum(wide) + 2 * 11
    assert words.fitting(wide, whole) == wide
    assert [words.fitting(wide, room).count(0) for room in (whole - 1, whole - 33, whole - 43)] == [1, 2, 2]
    left = words.fitting(wide, 79)
    assert not any(left[words.COLUMNS.index(name)] for name in ("model", "method", "if off", "wait"))


def test_settings_are_short_and_in_columns(tmp_path: Path) -> None:
    assert words.setting("8 tokens, probability >= 0.2") == "8, p>=0.2"
    assert words.setting("5 tokens, top-k 3, width 8") == "5, top-k 3, width 8"
    assert [words.setting(text) for text in ("7 tokens", "off", None)] == ["7 tokens", "off", "-"]

    async def course(daemon: ShownDaemon, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: "batch" in text_of(pilot, "buckets"))
        board = daemon.board.get(daemon.engines[0].url)
        assert board is not None
        detail = board.detail()
        settings = ("8 tokens, probability >= 0.2", "5 tokens, top-k 3, width 8")
        changed = [
            bucket.model_copy(update={"words": setting, "sample": "7 tokens"})
            for bucket, setting in zip(detail.buckets, settings, strict=False)
        ]
        pilot.app.screen.show(detail.model_copy(update={"buckets": tuple(changed)}))  # type: ignore[attr-defined]
        lines = text_of(pilot, "buckets").splitlines()
        assert [line.index("7 tokens") for line in lines[1:]] == [lines[0].index("sampled")] * len(changed)

    watch(tmp_path, course, count=1)


def test_a_password_in_an_address_is_not_shown() -> None:
    async def run(engines: list[FakeEngine]) -> None:
        secret = engines[0].url.replace("http://", "http://me:secret@")
        source: Source = ServersSource([secret], None, find_policy("balanced"))
        for _ in range(100):
            (view,) = (await source.overview()).targets
            if view.is_up:
                break
            await asyncio.sleep(0.05)
        assert (view.is_up, view.target) == (True, engines[0].url)
        assert "secret" not in (await source.detail(view.target)).model_dump_json()
        await source.close()

    on_engines(1, run)


def test_servers_are_polled_without_a_daemon_and_not_changed() -> None:
    async def run(engines: list[FakeEngine]) -> None:
        source: Source = ServersSource([engine.url for engine in engines], None, find_policy("balanced"))
        for _ in range(100):
            overview = await source.overview()
            if all(view.is_up for view in overview.targets):
                break
            await asyncio.sleep(0.05)
        assert [view.running for view in overview.targets] == [1, 2]
        assert (await source.detail(engines[0].url)).model == "fake"
        with pytest.raises(TargetError, match="--daemon"):
            await source.change(ControlChange(target=engines[0].url, mode=Mode.OFF))
        await source.close()
        assert [engine.puts for engine in engines] == [[], []]

    on_engines(2, run)


def test_a_daemon_that_is_not_there_is_said_at_once() -> None:
    result = CliRunner().invoke(top, ["--daemon", "http://127.0.0.1:9"])
    assert isinstance(result.exception, TargetError)
    assert "127.0.0.1:9: connection refused" in str(result.exception)
    assert "start specctl autotune, or name servers: specctl top http" in str(result.exception)


def test_without_a_terminal_it_ends_with_a_word() -> None:
    with FakeEngine() as engine:
        ended = subprocess.run(
            [sys.executable, "-m", "specctl.cli.main", "top", engine.url],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr.startswith("specctl top needs a terminal; ")
