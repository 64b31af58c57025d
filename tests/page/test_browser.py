"""The page in a real browser: figures, keyboard, a narrow screen, and what its policy lets through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes.engine import FakeEngine, Traffic
from support.browser import CHROMIUM, Tab, browser_tab
from support.shown_daemon import CONTROL, ShownDaemon, shown_daemon, write_tokens

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

Course = Callable[[ShownDaemon, Tab], Awaitable[None]]
FOCUSED = "document.activeElement.textContent.trim() || document.activeElement.id"


def browse(folder: Path, course: Course, count: int, token_file: Path | None = None) -> None:
    async def run(engines: list[FakeEngine]) -> None:
        async with shown_daemon(engines, token_file=token_file) as daemon:
            await daemon.run(12)
            async with browser_tab(folder / "profile") as tab:
                await course(daemon, tab)

    engines = [FakeEngine(start_tokens=4, traffic=Traffic(decode_batch=1 + i), seed=i) for i in range(count)]
    for engine in engines:
        engine.__enter__()
    try:
        asyncio.run(run(engines))
    finally:
        for engine in engines:
            engine.__exit__(None, None, None)


async def tab_to(tab: Tab, words: str) -> None:
    for _ in range(60):
        await tab.press("Tab")
        if await tab.evaluate(FOCUSED) == words:
            return
    raise AssertionError(f"{words!r} is not reached by the keyboard")


def test_servers_are_listed_and_opened_by_keyboard(tmp_path: Path) -> None:
    async def course(daemon: ShownDaemon, tab: Tab) -> None:
        await tab.open(daemon.url)
        await tab.wait_for("document.querySelectorAll('#servers-body tr').length == 3")
        name = daemon.engines[1].url.removeprefix("http://")
        row = (
            f"[...document.querySelectorAll('#servers-body tr')].find(r => r.textContent.includes('{name}'))"
        )
        assert await tab.evaluate(f"{row}.children[1].textContent") == "steered"
        assert await tab.evaluate(f"{row}.children[4].textContent") == "2"
        await tab_to(tab, "Running")
        await tab.press("Enter")
        assert await tab.evaluate("document.querySelector('#servers-body tr').children[4].textContent") == "3"
        await tab_to(tab, name)
        await tab.press("Enter")
        await tab.wait_for("!document.getElementById('detail').hidden && document.querySelector('.bars')")
        assert await tab.evaluate("document.getElementById('detail-title').textContent") == name
        assert await tab.evaluate("document.querySelectorAll('svg.chart .series').length") >= 4
        assert "tokens" in await tab.evaluate("document.querySelector('#detail .panel.wide').textContent")
        assert tab.complaints == []

    browse(tmp_path, course, 3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_sideways(tmp_path: Path, scheme: str) -> None:
    async def course(daemon: ShownDaemon, tab: Tab) -> None:
        await tab.open(daemon.url, width=400, scheme=scheme)
        await tab.wait_for("document.querySelector('.bars')")
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 400
        ground = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
        await tab.picture(tmp_path / "page.png")
        assert tab.complaints == []

    browse(tmp_path, course, 1)


def test_a_token_is_asked_for_and_changes_a_server(tmp_path: Path) -> None:
    async def course(daemon: ShownDaemon, tab: Tab) -> None:
        await tab.open(daemon.url)
        await tab.wait_for("document.body?.textContent.includes('A token is needed')")
        await tab_to(tab, "Token")
        await tab.press("Enter")
        await tab.wait_for("document.activeElement.id == 'token-value'")
        await tab.call("Input.insertText", text=CONTROL)
        await tab.press("Enter")
        await tab.wait_for("document.querySelector('.bars')")
        await tab_to(tab, "Off")
        await tab.press("Enter")
        await tab.wait_for("document.getElementById('detail').textContent.includes('Taken')")
        await daemon.run(2)
        assert daemon.engines[0].tokens_at(1) == 0
        await tab.wait_for("document.getElementById('detail').textContent.includes('off by hand')")
        assert not [words for words in tab.complaints if "401" not in words]

    browse(tmp_path, course, 1, write_tokens(tmp_path))


def test_no_script_but_the_pages_own_runs(tmp_path: Path) -> None:
    async def course(daemon: ShownDaemon, tab: Tab) -> None:
        await tab.open(daemon.url)
        await tab.wait_for("document.querySelector('.bars')")
        await tab.evaluate(
            "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; "
            "document.body.append(s); const i = new Image(); i.src = 'http://127.0.0.1:1/x'"
        )
        await tab.evaluate("new Promise(done => setTimeout(done, 200))")
        assert await tab.evaluate("window.ran") is None
        assert sum("Content Security Policy" in words for words in tab.complaints) == 2

    browse(tmp_path, course, 1)
