"""``specctl bench``: the options, and what is done with the result."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from specctl.json_bounds import read_json
from specctl.terminal import FiniteRange, examples, json_option

__all__ = ["bench"]

EXIT_BEHIND = 6


class Numbers(click.ParamType[tuple[float, ...]]):
    """``1,4,8``."""

    name = "numbers"

    def __init__(self, *, is_whole: bool) -> None:
        self._kind: type[int] | type[float] = int if is_whole else float

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r}: expected numbers joined by commas", param, ctx)


class JsonObject(click.ParamType[dict[str, Any]]):
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, dict):
            return value
        try:
            found = read_json(value)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail("expected a JSON object", param, ctx)
        return found


@click.command(
    "bench",
    epilog=examples(
        "specctl bench http://localhost:8000 --save result",
        "specctl bench http://localhost:8000 --arm off --arm 3 --arm autotune --concurrency 1,8,32",
        "specctl bench http://localhost:8000 http://localhost:8001 --name mine --name never-enabled",
        "specctl bench 'vllm serve MODEL' 'vllm serve MODEL --port 8001 --speculative-config ...'",
        "specctl bench localhost:8000 --prompts my.jsonl --rate 2,4 --sampling '{\"temperature\": 0.7}'",
        "specctl bench localhost:8000 --search --minutes 20 --save result",
        "specctl bench --from off=off.json --from with=with.json",
    ),
)
@click.argument("targets", nargs=-1)
@click.option(
    "--name", "names", multiple=True, metavar="NAME", help="label of each target, in their order; repeat"
)
@click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="ARM",
    help="off, table, a number of drafted tokens, drafts:top-k:width, autotune or autotune:POLICY; repeat. "
    "Default: off, table and autotune on the first target with the plugin",
)
@click.option("--baseline", metavar="ARM", help="what the others are compared with; default: the first arm")
@click.option(
    "--prompts",
    multiple=True,
    metavar="NAME|FILE",
    help="chat, code, sql, agent, copying, or JSON lines with prompt or messages; A+B take turns; repeat. "
    "Default: chat",
)
@click.option(
    "--concurrency",
    type=Numbers(is_whole=True),
    metavar="N,N",
    help="closed loop: requests at once; default: 1,8",
)
@click.option(
    "--rate",
    type=Numbers(is_whole=False),
    metavar="R,R",
    help="open loop: Poisson arrivals, in requests per second",
)
@click.option(
    "--trace", multiple=True, metavar="FILE", help="open loop: arrivals from CSV or a log of specctl record"
)
@click.option(
    "--load",
    "loads",
    multiple=True,
    metavar="TEXT",
    help="one load in full, as in 'chat concurrency=8 output=64'; in place of the four options above; repeat",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="most tokens of an answer",
)
@click.option(
    "--seconds",
    type=FiniteRange(0.5),
    default=None,
    metavar="S",
    help="seconds of each round of an arm; default: 10 without --requests",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="requests of each round of an arm; with --seconds, whichever is first",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    metavar="N",
    help="rounds of each arm; default: 6, and up to 18 while an interval is wider than 5 % to each side",
)
@click.option(
    "--sampling",
    type=JsonObject(),
    default={},
    metavar="JSON",
    help="is added to each request's body; default: {}",
)
@click.option("--ignore-eos", is_flag=True, help="answers always have --output-tokens tokens")
@click.option(
    "--endpoint",
    type=click.Choice(["auto", "chat", "completions"]),
    default="auto",
    show_default=True,
    help="OpenAI-compatible route of the requests; auto: chat where the model has a chat template",
)
@click.option(
    "--as-they-are",
    is_flag=True,
    help="do not put a number before each prompt; the prefix cache can then help",
)
@click.option("--prompts-once", is_flag=True, help="send each prompt once, so that no earlier output helps")
@click.option(
    "--outputs",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    help="greedy outputs to compare with the baseline's; 0: none",
)
@click.option("--no-warm-up", is_flag=True, help="count the first requests of a server too")
@click.option(
    "--price-per-hour",
    type=FiniteRange(0),
    metavar="PRICE",
    help="price of the server for an hour, in any currency",
)
@click.option("--seed", type=int, default=0, show_default=True, help="random seed of Poisson arrivals")
@click.option(
    "--search", is_flag=True, help="try the prepared settings and print the best launch command and policy"
)
@click.option(
    "--minutes",
    type=FiniteRange(0.5),
    default=15.0,
    show_default=True,
    help="minutes that --search may take",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="bearer token with the control scope",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="API key of the OpenAI-compatible routes",
)
@click.option(
    "--from",
    "from_files",
    multiple=True,
    metavar="ARM=FILE",
    help="compare result files of vllm bench serve or SGLang's bench_serving; repeat for arms and for rounds",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="write bench.json, bench.md, bench.html and the files of other tools there",
)
@click.option(
    "--fail-if-behind",
    is_flag=True,
    help=f"exit code {EXIT_BEHIND} where autotune is slower than the best constant arm or the baseline",
)
@json_option("the result as one JSON document on standard output")
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> int:
    """Compare settings of speculative decoding on your own server and prompts.

    TARGET is the URL of a vLLM or SGLang server, or in quotes the command that launches one. Arms take turns
    in rounds; a confidence interval over the rounds decides whether there is a difference. Tables of servers
    are changed under a lease and put back at the end.
    """
    # Here, so that the list of commands and --help need no numpy, aiohttp and rich.
    from specctl.bench.files import run_files
    from specctl.bench.main import run_bench

    options["command"] = shlex.join(["specctl", "bench", *_arguments()])
    if bool(options["targets"]) == bool(options["from_files"]):
        raise click.UsageError("name a TARGET, or result files with --from", context)
    result = run_files(options) if options["from_files"] else run_bench(options)
    if result.is_cut_short:
        # Leaves at once, so that another Ctrl-C finds nothing to end with its own code.
        raise KeyboardInterrupt
    return EXIT_BEHIND if options["fail_if_behind"] and result.is_behind else 0


def _arguments() -> list[str]:
    """What stands after ``bench`` on this process's command line."""
    words = sys.argv[1:]
    return words[words.index("bench") + 1 :] if "bench" in words else words
