"""The speculation table of a running engine: whole swaps, versions, leases, fallback."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from specctl.contract import CONTRACT_VERSION
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, Refusal, TablePut, TableRow, TableState, uniform_rows
from specctl.engine.checked_table import SpeculationTable, limit_refusals, setting_refusal
from specctl.engine.ranks import Adoption
from specctl.engine.step_sampling import StepSampler
from specctl.errors import LeaseHeld, TableError, VersionConflict

__all__ = ["LiveTable"]


class LiveTable:
    """Holds the table that the engine looks up on every step. Used from one thread."""

    def __init__(
        self,
        capabilities: Capabilities,
        start_rows: Sequence[TableRow],
        monotonic_s: Callable[[], float],
        samples: StepSampler | None = None,
    ) -> None:
        """samples: None: a sample takes one step."""
        self.capabilities = capabilities
        self._monotonic_s = monotonic_s
        self._start = self._table = SpeculationTable(start_rows, capabilities)
        self.class_limits: tuple[ClassLimit, ...] = ()
        """Also in force under the fallback: fewer drafts are always safe."""
        self._state = TableState.START
        self._version = 0
        self._decider: str | None = None
        self._fallback_number: int | None = None
        self._samples = samples or StepSampler()
        self._lease_s: float | None = None
        self._lease_ends_s = math.inf
        self._owner: str | None = None
        self._reason = "as configured at start"
        self._applied_s = monotonic_s()

    @property
    def version(self) -> int:
        return self._version

    @property
    def state(self) -> TableState:
        self._expire()
        return self._state

    def lookup(self, decode_batch: int, mean_context_tokens: float = 0.0) -> int:
        """num_speculative_tokens of a step; the fallback's once the lease has run out."""
        return self.lookup_row(decode_batch, mean_context_tokens).num_speculative_tokens

    def lookup_row(self, decode_batch: int, mean_context_tokens: float = 0.0) -> TableRow:
        """The row of a step; asking changes nothing."""
        self._expire()
        return self._table.lookup_row(decode_batch, mean_context_tokens)

    def next_step(self, decode_batch: int, mean_context_tokens: float = 0.0) -> tuple[Setting, bool]:
        """The setting of the engine's next step, and whether it is a sample of the row. Asked once a step."""
        row = self.lookup_row(decode_batch, mean_context_tokens)
        return self._samples.next_setting(row)

    def put(self, change: TablePut) -> AppliedTable:
        """Swap the whole table.

        Raises LeaseHeld, VersionConflict or TableError; the table is then as before.
        """
        self._expire()
        remaining_s = self._lease_remaining_s()
        if remaining_s is not None and self._owner is not None and change.owner != self._owner:
            raise LeaseHeld(self._owner, remaining_s)
        if change.base_version != self._version:
            raise VersionConflict(expected=self._version, got=change.base_version)
        self._swap(change, self._version + 1)
        return self.read()

    def adopt(self, adoption: Adoption) -> AppliedTable:
        """Take what another rank decided on, whichever table and lease are in force here.

        One that is older than the last adopted one is left alone: several API servers may pass them on out of
        order. Raises TableError; the table is then as before.
        """
        self._expire()
        if adoption.decider != self._decider or adoption.version > self._version:
            self._swap(adoption.change, adoption.version)
            self._decider = adoption.decider
        return self.read()

    def _swap(self, change: TablePut, version: int) -> None:
        refusals = self._refusals(change)
        if refusals:
            raise TableError(refusals)
        self._table = SpeculationTable(change.rows, self.capabilities)
        self._fallback_number = change.fallback_num_speculative_tokens
        self.class_limits = change.class_limits
        self._state = TableState.LIVE
        self._version = version
        self._owner = change.owner
        self._reason = change.reason
        self._applied_s = self._monotonic_s()
        self._lease_s = change.lease_s
        self._lease_ends_s = math.inf if change.lease_s is None else self._applied_s + change.lease_s

    def read(self) -> AppliedTable:
        self._expire()
        return AppliedTable(
            contract_version=CONTRACT_VERSION,
            boot_id=self.capabilities.boot_id,
            version=self._version,
            state=self._state,
            method=self.capabilities.method,
            rows=self._table.rows,
            fallback_num_speculative_tokens=self._fallback_number,
            start_rows=self._start.rows,
            lease_s=self._lease_s,
            lease_remaining_s=self._lease_remaining_s(),
            owner=self._owner,
            reason=self._reason,
            age_s=self._monotonic_s() - self._applied_s,
            class_limits=self.class_limits,
        )

    def _expire(self) -> None:
        if self._lease_ends_s == math.inf or self._monotonic_s() < self._lease_ends_s:
            return
        number = self._fallback_number
        is_start = number is None
        self._table = (
            self._start if is_start else SpeculationTable(uniform_rows(number or 0), self.capabilities)
        )
        self._state = TableState.FALLBACK
        self._applied_s = self._lease_ends_s
        self._reason = f"the lease of {self._owner!r} ran out"
        self._lease_ends_s = math.inf
        self._lease_s = None
        self._owner = None

    def _lease_remaining_s(self) -> float | None:
        if self._lease_ends_s == math.inf:
            return None
        return self._lease_ends_s - self._monotonic_s()

    def _refusals(self, change: TablePut) -> list[Refusal]:
        refusals = []
        if change.lease_s is not None and change.lease_s > self.capabilities.lease_max_s:
            reason = f"at most {self.capabilities.lease_max_s} s, got {change.lease_s}"
            refusals.append(Refusal(row=None, field="lease_s", reason=reason))
        number = change.fallback_num_speculative_tokens
        if number is not None:
            refused = setting_refusal(Setting(num_speculative_tokens=number), self.capabilities)
            if refused is not None:
                refusals.append(Refusal(row=None, field="fallback_num_speculative_tokens", reason=refused[1]))
        return [*refusals, *limit_refusals(change.class_limits, self.capabilities)]
