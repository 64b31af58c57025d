"""What can be chosen on one server: its decode-batch buckets and its prepared settings, numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import TableRow, legal_settings
from specctl.contract.telemetry import TelemetryCell
from specctl.core.table_rows import row_at

__all__ = ["Bools", "Floats", "Ints", "Space", "by_depth"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Space:
    """Settings by rising verify width, then depth; the first one is off. ``buckets``: first and last batch.

    Settings here have no ``min_token_prob``; a tree's width is written out. ``is_off_prepared``: where it is
    not, off is only what others are compared with.
    """

    settings: tuple[Setting, ...]
    buckets: tuple[tuple[int, int], ...]
    is_off_prepared: bool = True

    @classmethod
    def of(cls, capabilities: Capabilities) -> Space:
        uppers = capabilities.decode_batch_buckets or (capabilities.decode_batch_max,)
        lowers = (1, *(upper + 1 for upper in uppers[:-1]))
        prepared = {_key(setting) for setting in legal_settings(capabilities)}
        ordered = sorted(prepared | {_key(OFF)}, key=lambda key: (key[2], key[0], key[1]))
        settings = tuple(
            Setting(
                num_speculative_tokens=depth,
                tree_topk=topk,
                verify_width_tokens=None if topk == 1 and width == depth + 1 else width,
            )
            for depth, topk, width in ordered
        )
        return cls(settings, tuple(zip(lowers, uppers, strict=True)), _key(OFF) in prepared)

    @cached_property
    def depth(self) -> Ints:
        return np.array([one.num_speculative_tokens for one in self.settings], np.int64)

    @cached_property
    def topk(self) -> Ints:
        return np.array([one.tree_topk for one in self.settings], np.int64)

    @cached_property
    def width(self) -> Ints:
        """Positions the target scores for a request, where every draft is full."""
        return np.array([one.width_tokens for one in self.settings], np.int64)

    @cached_property
    def chains(self) -> tuple[int, ...]:
        """Numbers of the settings that draft in one row."""
        return tuple(((self.topk == 1) & (self.depth > 0)).nonzero()[0].tolist())

    @cached_property
    def is_prepared(self) -> Bools:
        """[setting]: what a row or a sample may name."""
        prepared = np.ones(len(self.settings), np.bool_)
        prepared[0] = self.is_off_prepared
        return prepared

    @cached_property
    def bucket_index(self) -> dict[int, int]:
        """By the bucket's last decode batch, as telemetry cells name it."""
        return {last: i for i, (_, last) in enumerate(self.buckets)}

    @cached_property
    def _index(self) -> dict[tuple[int, int, int], int]:
        return {_key(setting): i for i, setting in enumerate(self.settings)}

    def number_of(self, named: Setting | TelemetryCell) -> int | None:
        """None: it is not prepared. A tree without a width: the widest that is."""
        depth, topk, width = named.num_speculative_tokens, named.tree_topk, named.verify_width_tokens
        found = self._index.get((depth, topk, width or depth + 1))
        if found is not None or width is not None:
            return found
        same = [i for i, one in enumerate(self.settings) if _key(one)[:2] == (depth, topk)]
        return same[-1] if same else None

    def in_force(self, rows: Sequence[TableRow]) -> Ints:
        """The setting of every bucket at no context; off where no row or no prepared setting is."""
        found = [row_at(rows, first) for first, _ in self.buckets]
        known = [None if row is None else self.number_of(row) for row in found]
        return np.array([at or 0 for at in known], np.int64)


OFF = Setting(num_speculative_tokens=0)


def _key(setting: Setting) -> tuple[int, int, int]:
    return setting.num_speculative_tokens, setting.tree_topk, setting.width_tokens


def by_depth(values: tuple[int, ...], depths: int) -> Floats:
    """A counter's positions as so many: those beyond are left out, those that it lacks are 0."""
    return np.array((*values[:depths], *((0,) * (depths - len(values)))), np.float64)
