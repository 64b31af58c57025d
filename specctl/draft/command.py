"""``specctl corpus build|inspect|merge``. The work needs numba and xxhash and is imported when it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specctl.errors import install_words
from specctl.terminal import examples, json_option, print_json

if TYPE_CHECKING:
    from specctl.draft.corpus_actions import Written

__all__ = ["corpus"]

EXIT_DAMAGED = 4
_FILE = click.Path(path_type=Path)


def _bytes(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() else 0
    if count < 1:
        raise click.BadParameter(f"expected bytes from 1, got {text!r}")
    return count


def _output_options(command: Callable[..., int]) -> Any:
    output = click.option("--output", required=True, type=_FILE, metavar="FILE", help="the corpus file")
    limit = click.option(
        "--max-bytes",
        type=_bytes,
        metavar="N",
        help="largest size of the index, in bytes; the oldest outputs are left out; default: no limit",
    )
    return output(limit(json_option()(command)))


@click.group(
    help="Make and inspect files of finished outputs, from which the suffix method drafts.\n\n"
    f"Needs more packages; {install_words('draft')}.",
    epilog=examples(
        "specctl corpus build outputs.jsonl --tokenizer MODEL_FOLDER --output corpus.bin",
        "specctl corpus inspect corpus.bin",
    ),
)
def corpus() -> None:
    """Files of finished outputs."""


@corpus.command(
    epilog=examples(
        "specctl corpus build monday.jsonl tuesday.jsonl --tokenizer MODEL_FOLDER --output corpus.bin",
        "specctl corpus build log.jsonl --field response.text --tokenizer MODEL_FOLDER --output corpus.bin",
    )
)
@click.argument("inputs", nargs=-1, required=True, type=_FILE, metavar="INPUT.jsonl...")
@click.option("--tokenizer", required=True, type=_FILE, metavar="FOLDER", help="the served model's folder")
@click.option(
    "--field", default="output", help="key of the output in a line; a.b for b inside a; default: output"
)
@click.option(
    "--namespace", default="", help="adapter and salt whose requests may get drafts from it; default: neither"
)
@_output_options
def build(as_json: bool, **given: Any) -> int:
    """Index logged outputs: JSON lines with a text, or with token ids; the oldest file first."""
    from specctl.draft.corpus_actions import build as build_file

    return _say(build_file(**given), as_json)


@corpus.command(epilog=examples("specctl corpus inspect corpus.bin --json"))
@click.argument("file", type=_FILE)
@json_option()
def inspect(file: Path, as_json: bool) -> int:
    """Check a corpus file and say what it holds, without a text."""
    from specctl.draft.corpus_actions import inspect as inspect_file

    seen, wrong = inspect_file(file)
    if as_json:
        print_json({**seen, "checksum": "ok" if wrong is None else "wrong", "why": wrong})
    else:
        click.echo("\n".join(_words(seen)))
        click.echo("  checksum     ok" if wrong is None else f"  checksum     WRONG: {wrong}")
    return 0 if wrong is None else EXIT_DAMAGED


@corpus.command(epilog=examples("specctl corpus merge old.bin new.bin --output both.bin --max-bytes 500000"))
@click.argument("inputs", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@_output_options
def merge(as_json: bool, **given: Any) -> int:
    """Make one corpus of several, the oldest first; equal outputs are kept once."""
    from specctl.draft.corpus_actions import merge_files

    return _say(merge_files(**given), as_json)


def _say(written: Written, as_json: bool) -> int:
    if as_json:
        print_json(asdict(written))
    else:
        click.echo(written.words())
    return 0


def _words(seen: dict[str, Any]) -> list[str]:
    each = f"{seen['bytes'] / seen['tokens']:.1f} a token" if seen["tokens"] else "no tokens"
    return [
        f"{seen['file']}: a specctl corpus, format version {seen['format_version']}, "
        f"layout version {seen['layout_version']}",
        f"  namespace    {seen['namespace']!r}",
        f"  tokenizer    {seen['tokenizer']}",
        f"  tokens       {seen['tokens']} in {seen['documents']} documents",
        f"  bytes        {seen['bytes']}, {each}",
        f"  rungs        {', '.join(str(rung) for rung in seen['rungs'])}",
        f"  created      {seen['created']}",
    ]
