"""Every error that specctl raises on purpose.

SpecctlError
├── ContractError        a message between daemon and engine breaks the contract
│   ├── TableError       a speculation table is not applicable; carries the refusals
│   ├── VersionConflict  the table changed since the writer read it
│   ├── LeaseHeld        another owner's lease on the table is still running
│   ├── AccessRefused    the server wants a token, or another one
│   └── OtherContract    a plugin of another contract version, or whose capabilities cannot be read
├── PolicyError          a policy file is wrong; names file, line, key and allowed values
├── BenchInputError      an arm, a load, prompts or a result file of a benchmark cannot be used
│   └── BenchArgumentError  known from the words on the command line alone
├── BenchFailed          a benchmark ran and measured nothing: the server refused or lost its requests
├── CorpusFileError      a corpus file, or what one is built from, cannot be used
├── SimulationInputError a trace, engine profile or acceptance scenario cannot be used (also a ValueError)
├── TargetError          a target cannot be reached, answers late, is no engine, or lacks what is asked for
│   └── NotSteered       an engine with the plugin that it does not steer, and why
└── TargetsError         a source of targets (file, DNS, Kubernetes API) cannot be read, or is wrong
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specctl.contract.table import Refusal

__all__ = [
    "AccessRefused",
    "BenchArgumentError",
    "BenchFailed",
    "BenchInputError",
    "ContractError",
    "CorpusFileError",
    "LeaseHeld",
    "NotSteered",
    "OtherContract",
    "PolicyError",
    "SimulationInputError",
    "SpecctlError",
    "TableError",
    "TargetError",
    "TargetsError",
    "VersionConflict",
    "install_words",
]


def install_words(extra: str) -> str:
    """How a group of optional packages is installed. No package index has specctl."""
    return f"in a clone of specctl: pip install '.[{extra}]'"


class SpecctlError(Exception):
    """Base of every error raised on purpose."""


class ContractError(SpecctlError):
    """A message between daemon and engine breaks the contract."""


class TableError(ContractError):
    """A speculation table is not applicable. Nothing of it was applied."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("; ".join(str(refusal) for refusal in self.refusals))


class VersionConflict(ContractError):
    """The table changed since the writer read it."""

    def __init__(self, expected: int, got: int) -> None:
        self.expected = expected
        self.got = got
        super().__init__(f"the table is at version {expected}, the change was made against version {got}")


class LeaseHeld(ContractError):
    """Another owner's lease on the table is still running."""

    def __init__(self, owner: str, remaining_s: float) -> None:
        self.owner = owner
        self.remaining_s = remaining_s
        super().__init__(f"the table is leased by {owner!r} for another {remaining_s:.1f} s")


class AccessRefused(ContractError):
    """The server wants a token, or another one."""


class OtherContract(ContractError):
    """The plugin speaks another contract version, or its capabilities cannot be read."""


class PolicyError(SpecctlError):
    """A policy file is wrong."""


class CorpusFileError(SpecctlError):
    """A corpus file, or what one is built from, cannot be used. The message names the path, never a text.

    reason: io (missing, not readable, disk full), foreign (another kind of file), version, damaged (torn or
    changed), mismatch (a sound file of another namespace, tokenizer or ladder), input (what to build from).
    """

    def __init__(
        self, words: str, reason: Literal["io", "foreign", "version", "damaged", "mismatch", "input"]
    ) -> None:
        self.reason = reason
        super().__init__(words)


class SimulationInputError(SpecctlError, ValueError):
    """A trace, engine profile or scenario cannot be used. Names file and place, expected and got."""


class TargetError(SpecctlError):
    """A target cannot be reached, answers late, is no engine, or lacks what is asked for."""


class NotSteered(TargetError):
    """The server has the plugin, which steers nothing there. Tells the server's own reason."""


class TargetsError(SpecctlError):
    """A source of targets cannot be read, or is wrong. Names source, place, expected and got."""


class BenchInputError(SpecctlError):
    """An arm, a load, prompts or a result file of a benchmark cannot be used."""


class BenchArgumentError(BenchInputError):
    """The words on the command line are wrong, whatever the server and the files are."""


class BenchFailed(SpecctlError):
    """A benchmark ran and measured nothing: the server refused or lost its requests."""
