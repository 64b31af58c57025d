"""What an operator sets over a policy file, for one target, while this daemon runs."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from specctl.core.settings import PolicySettings
from specctl.daemon.context import PolicySource
from specctl.errors import PolicyError
from specctl.policy.models import POLICY_ADAPTER, AnyPolicy, Threshold
from specctl.watch.views import Mode

__all__ = ["Override"]

_COMMON = set(PolicySettings.model_fields)


class Override:
    """A PolicySource: the file's policy, or what is set over it. Timing and bounds stay the file's."""

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self.mode = Mode.POLICY
        self.thresholds: tuple[Threshold, ...] = ()
        self._made: tuple[AnyPolicy, AnyPolicy] | None = None

    @property
    def is_dry_run(self) -> bool:
        """Decide and show, and hold the table in force."""
        return self.mode is Mode.DRY_RUN

    @property
    def policy(self) -> AnyPolicy:
        base = self._source.policy
        if self._made is None or self._made[0] is not base:
            try:
                self._made = base, self._over(base, self.mode, self.thresholds)
            except PolicyError:
                # The file was changed: what it says holds where the operator's change no longer fits.
                self._made = base, base
        return self._made[1]

    def set(self, mode: Mode, thresholds: Sequence[Threshold] = ()) -> None:
        """From the next poll on. ``thresholds``: of a table, by rising decode batch.

        Raises PolicyError; then nothing has changed.
        """
        base = self._source.policy
        self._made = base, self._over(base, mode, thresholds)
        self.mode, self.thresholds = mode, tuple(thresholds)

    def take(self, before: Override) -> None:
        """As it was set for another start of this target; it holds where and while the file lets it."""
        self.mode, self.thresholds, self._made = before.mode, before.thresholds, None

    @staticmethod
    def _over(base: AnyPolicy, mode: Mode, thresholds: Sequence[Threshold]) -> AnyPolicy:
        if mode in (Mode.POLICY, Mode.DRY_RUN):
            return base
        if mode is Mode.FREEZE:
            return base.model_copy(update={"frozen": True})
        if base.frozen:
            raise PolicyError("the policy file is frozen; thaw it first (specctl thaw)")
        common = {
            name: value.model_dump() if isinstance(value, BaseModel) else value
            for name, value in base
            if name in _COMMON and name in base.model_fields_set
        }
        common.pop("kind", None)
        if mode is Mode.OFF:
            common.pop("knobs", None)
            common.pop("fallback_num_speculative_tokens", None)
            return _made({**common, "kind": "off", "fallback_num_speculative_tokens": 0})
        rows = [one.model_dump() for one in thresholds]
        return _made({**common, "kind": "thresholds", "thresholds": rows})


def _made(fields: dict[str, object]) -> AnyPolicy:
    try:
        return POLICY_ADAPTER.validate_python(fields)
    except ValidationError as error:
        words = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors()[:4])
        raise PolicyError(words) from error
