"""The terminal view: a list of servers, one of them in detail, and keys that change it."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Label, Static

from specctl.errors import TargetError
from specctl.plain_text import counted
from specctl.top import words
from specctl.top.sources import Source
from specctl.watch.views import ControlChange, LogLine, Mode, Overview, TargetDetail

__all__ = ["TopApp"]

INTERVAL_S = 2.0
LINES_SHOWN = 50
_QUESTIONS = {
    Mode.FREEZE: "Freeze {0}? Its table is held as it is.",
    Mode.OFF: "Turn drafting off on {0}?",
    Mode.POLICY: "Resume on {0}? Its policy decides again.",
    Mode.DRY_RUN: "Dry run on {0}? Its table is held, decisions are only shown.",
}


class Confirm(ModalScreen[bool]):
    """A change is asked for once more."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Label(Text(f"{self._question}\n\ny: yes    n: no"), id="question")

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)


class Servers(Screen[None]):
    """One line each."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "details", "Details", priority=True)]

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=True, id="servers")
        yield Static(id="said", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._shown: dict[str, Text] = {}
        self._widths: tuple[int, ...] = ()
        self._fitting: tuple[int, ...] = ()
        self._table.focus()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#servers", DataTable)

    @property
    def chosen(self) -> str | None:
        table = self._table
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def show(self, overview: Overview) -> None:
        table, targets = self._table, {view.target for view in overview.targets}
        rows = {view.target: words.cells(view) for view in overview.targets}
        chosen = self.chosen
        is_new = self._widen(words.widths(list(rows.values())))
        for gone in self._shown.keys() - targets:
            table.remove_row(gone)
            del self._shown[gone]
        for view in overview.targets:
            target = view.target
            line = words.line(rows[target], self._fitting, words.state(view).style)
            before, self._shown[target] = self._shown.get(target), line
            if before is None:
                table.add_row(line, key=target)
            elif before != line:
                table.update_cell(target, "line", line)
        if is_new and chosen in rows:
            table.move_cursor(row=table.get_row_index(chosen))
        daemon = overview.daemon
        up = sum(view.is_up is True for view in overview.targets)
        rate = sum(view.emitted_tokens_per_s or 0.0 for view in overview.targets)
        head = f"specctl {daemon.version}  {daemon.owner}{', dry run' if daemon.is_dry_run else ''}  "
        head += f"{counted(len(targets), 'server')}, {up} reachable, {rate:,.0f} tokens/s emitted"
        self.query_one("#head", Static).update(head)

    def _widen(self, widths: tuple[int, ...]) -> bool:
        """Whether the table is empty now. Columns only grow, so that the lines stand still."""
        self._widths = tuple(map(max, widths, self._widths)) if self._widths else widths
        fitting = words.fitting(self._widths, self.app.size.width - 2 * self._table.cell_padding)
        if fitting == self._fitting:
            return False
        self._table.clear(columns=True)
        self._fitting, self._shown = fitting, {}
        self._table.add_column(words.line(words.COLUMNS, fitting), key="line")
        return True

    def action_details(self) -> None:
        if self.chosen is not None:
            self.app.push_screen(Details(self.chosen))


class Details(Screen[None]):
    """One server."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,left", "app.pop_screen", "Back")]

    def __init__(self, target: str) -> None:
        super().__init__()
        self.chosen = target

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        with VerticalScroll():
            with Grid(id="panels"):
                for name, title in (("facts", "Now"), ("chart", "Tokens/s"), ("acceptance", "Accepted")):
                    panel = Static(id=name, markup=False, classes="panel")
                    panel.border_title = title
                    yield panel
            for name, title in (
                ("buckets", "Setting by decode batch"),
                ("decisions", "Decisions"),
                ("events", "Events"),
            ):
                panel = Static(id=name, markup=False, classes="panel")
                panel.border_title = title
                yield panel
        yield Static(id="said", markup=False)
        yield Footer()

    def show(self, detail: TargetDetail) -> None:
        about = [detail.model, detail.method, f"{detail.engine or ''} {detail.engine_version or ''}".strip()]
        head = Text.assemble((detail.instance, "bold"), "  ", words.state(detail), "  ")
        head.append(", ".join(filter(None, about)), "dim")
        if detail.is_up is False:
            head.append(f"  {detail.why_down}", "red")
        self._put("head", head)
        self._put("facts", words.facts(detail, time.time()))
        chart = self.query_one("#chart", Static)
        chart.update(words.chart(detail.history, chart.content_size.width - 16))
        self._put("acceptance", words.acceptance(detail.survival_at))
        self._put("buckets", _buckets(detail))
        self._put("decisions", _log(detail.decisions))
        self._put("events", _log(detail.events))

    def _put(self, name: str, text: Text) -> None:
        self.query_one(f"#{name}", Static).update(text)


class TopApp(App[None]):
    """Asks its source every two seconds."""

    TITLE = "specctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; background: $panel; }
    #said { height: auto; padding: 0 1; color: $error; }
    #servers { height: 1fr; }
    #panels { grid-size: 3; grid-columns: 54 1fr 34; grid-rows: auto; height: auto; }
    .panel { border: round $primary; padding: 0 1; height: auto; }
    #panels .panel { height: 100%; min-height: 11; }
    .-narrow #panels { grid-size: 1; grid-columns: 1fr; }
    .-narrow #panels .panel { height: auto; min-height: 0; }
    Confirm { align: center middle; }
    #question { padding: 1 3; border: thick $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "set('freeze')", "Freeze"),
        Binding("o", "set('off')", "Off"),
        Binding("d", "set('dry_run')", "Dry run"),
        Binding("r", "set('policy')", "Resume"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (125, "-wide")]
        self._source = source
        self._servers = Servers()

    async def on_mount(self) -> None:
        await self.push_screen(self._servers)
        self.set_interval(INTERVAL_S, self.refresh_figures)
        await self.refresh_figures()

    async def refresh_figures(self) -> None:
        """Of the screen that is seen."""
        screen = self.screen
        try:
            if isinstance(screen, Details):
                screen.show(await self._source.detail(screen.chosen))
            elif isinstance(screen, Servers):
                screen.show(await self._source.overview())
        except TargetError as error:
            self._say(str(error))
        else:
            self._say("")

    def on_screen_resume(self) -> None:
        self.call_later(self.refresh_figures)

    async def action_set(self, mode: str) -> None:
        screen = self.screen
        target = screen.chosen if isinstance(screen, Servers | Details) else None
        if target is None:
            return

        async def answered(is_yes: bool | None) -> None:
            if is_yes:
                await self._change(ControlChange(target=target, mode=Mode(mode)))

        await self.push_screen(Confirm(_QUESTIONS[Mode(mode)].format(target)), answered)

    async def _change(self, change: ControlChange) -> None:
        try:
            await self._source.change(change)
        except TargetError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.notify("Taken; it shows with the next poll.")

    def _say(self, text: str) -> None:
        for said in self.screen.query("#said").results(Static):
            said.update(text)


def _buckets(detail: TargetDetail) -> Text:
    settings = ["setting", *(words.setting(one.words) for one in detail.buckets)]
    samples = ["sampled", *(words.setting(one.sample) for one in detail.buckets)]
    wide, sampled = max(map(len, settings)) + 2, max(map(len, samples)) + 2
    head = f"{'batch':<9}{settings[0]:<{wide}}{samples[0]:<{sampled}}{'tok/s':>6}{'if off':>8}  why"
    lines = [Text(head, "dim")]
    for one, setting, sample in zip(detail.buckets, settings[1:], samples[1:], strict=True):
        first, last = one.decode_batch_from, one.decode_batch_to
        batch = f"{last}" if first == last else f"{first}-{last}"
        why = one.reason.replace("_", " ") + (f": {one.detail}" if one.detail else "")
        rates = f"{words.number(one.present_tokens_per_s):>6}{words.number(one.off_tokens_per_s):>8}"
        line = f"{batch:<9}{setting:<{wide}}{sample:<{sampled}}{rates}  {why}"
        lines.append(Text(line, "bold" if one.is_active else ""))
    return Text("\n").join(lines) if detail.buckets else Text("no decision yet", "dim")


def _log(lines: tuple[LogLine, ...]) -> Text:
    shown = [
        Text.assemble(
            (f"{line.when[11:19]} ", "dim"),
            (f"{line.name.replace('_', ' ')} ", "bold red" if line.is_warning else "bold"),
            line.words,
        )
        for line in lines[:LINES_SHOWN]
    ]
    return Text("\n").join(shown) if shown else Text("nothing yet", "dim")
