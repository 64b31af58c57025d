"""``specctl doctor TARGET | LAUNCH COMMAND``."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import click

from specctl.cli.options import POLICY, token_file_option
from specctl.doctor.launch_checks import Given, examine_launch, gpu_memory_bytes
from specctl.doctor.launch_line import is_launch, parse_launch
from specctl.doctor.report import Report
from specctl.terminal import FiniteRange, clock_progress, examples, json_option, print_json, progress

__all__ = ["doctor", "memory_size"]

MEASURE_S = 60.0
_UNITS = {"": 2**30, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([MGT]?)i?B?", re.IGNORECASE)


def memory_size(text: str) -> float:
    """Bytes of "80G", "24GiB", "40960M" or plain GiB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise click.BadParameter(f"expected memory such as 80G or 40960M, got {text!r}")
    return float(found[1]) * _UNITS[found[2].upper()]


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options of a launch command are the engine's; behind a target's URL they are ours."""
        ctx.allow_interspersed_args = not is_launch(args)
        return super().parse_args(ctx, args)


@click.command(
    cls=_Command,
    context_settings={"ignore_unknown_options": False},
    epilog=examples(
        "specctl doctor http://localhost:8000",
        "specctl doctor http://localhost:8000 --policy policy.yaml --json",
        "specctl doctor http://localhost:8000 --measure --strict",
        "specctl doctor --gpu-memory 80G vllm serve MODEL --speculative-config '{...}'",
        "specctl doctor python -m sglang.launch_server --model-path MODEL --speculative-algorithm EAGLE3 ...",
    ),
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="TARGET | LAUNCH COMMAND")
@json_option()
@click.option("--strict", is_flag=True, help="exit with 1 also for a warning")
@token_file_option("read, with --measure the control")
@click.option("--policy", type=POLICY, metavar="FILE", help="a target: whether this policy can act there")
@click.option(
    "--daemon",
    multiple=True,
    metavar="URL",
    help="a target: URL of a daemon's metrics port, which is checked too; repeat for more",
)
@click.option(
    "--measure",
    is_flag=True,
    help=f"a target: compare with no drafts for {MEASURE_S:g} s; takes a lease, and needs traffic",
)
@click.option(
    "--window", type=FiniteRange(0.2, 600), default=5.0, metavar="SECONDS",
    help="a target: seconds between the two readings; default: 5",
)  # fmt: skip
@click.option(
    "--gpu-memory", type=memory_size, metavar="SIZE", help="a command: memory of one GPU, such as 80G"
)
@click.option(
    "--engine-version", metavar="VERSION", help="a command: release of the engine, if not installed here"
)
@click.option("--cpu", is_flag=True, help="a command: for a server without a GPU")
def doctor(words: tuple[str, ...], **given: Any) -> int:
    """Say what is wrong with a running server, or with a launch command before it runs.

    Each finding has a code, what is wrong, how it was seen and what to do. Nothing is started, and without
    --measure nothing is changed. Of a launch command the options, the environment, the configs and the
    headers of the weights are read. Put doctor's own options before a launch command.

    Exit code 1: an error was found (with --strict: or a warning).
    """
    if is_launch(words):
        report = _of_launch(words, given)
    else:
        if len(words) > 1:
            raise click.UsageError(f"expected one target or a launch command, got {shlex.join(words)}")
        report = _of_target(words[0], given)
    if given["as_json"]:
        print_json(report.as_json())
    else:
        click.echo("\n".join(report.lines()))
    return report.exit_code(is_strict=given["strict"])


def _of_launch(words: tuple[str, ...], given: dict[str, Any]) -> Report:
    launch = parse_launch(words, os.environ)
    memory = given["gpu_memory"] or (None if given["cpu"] else gpu_memory_bytes())
    machine = Given(memory, given["engine_version"], given["cpu"])
    with progress("reading the model's folders"):
        return examine_launch(launch, machine, shlex.join(words))


def _of_target(target: str, given: dict[str, Any]) -> Report:
    import asyncio

    from specctl.doctor.target_checks import Asked, examine_target
    from specctl.http_client import normalise_target, read_token
    from specctl.policy.loader import find_policy, load_policy

    token_file: Path | None = given["token_file"]
    asked = Asked(
        target=normalise_target(target),
        token=None if token_file is None else read_token(token_file),
        window_s=given["window"],
        policy=None if given["policy"] is None else load_policy(find_policy(given["policy"])),
        measure_s=MEASURE_S if given["measure"] else None,
        daemons=given["daemon"],
    )
    seconds = asked.window_s + (asked.measure_s or 0.0)
    with clock_progress(f"examining {asked.target}", seconds):
        return asyncio.run(examine_target(asked))
