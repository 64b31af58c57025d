"""The kinds of policy: a discriminated union on ``kind``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter

from specctl.policy.by_hand import FixedPolicy, OffPolicy, Threshold, ThresholdsPolicy
from specctl.policy.goodput import GoodputPolicy

__all__ = [
    "KINDS",
    "POLICY_ADAPTER",
    "AnyPolicy",
    "FixedPolicy",
    "GoodputPolicy",
    "OffPolicy",
    "Threshold",
    "ThresholdsPolicy",
]

AnyPolicy = GoodputPolicy | ThresholdsPolicy | FixedPolicy | OffPolicy
POLICY_ADAPTER: TypeAdapter[AnyPolicy] = TypeAdapter(Annotated[AnyPolicy, Field(discriminator="kind")])
KINDS: dict[str, type[BaseModel]] = {
    "goodput": GoodputPolicy,
    "thresholds": ThresholdsPolicy,
    "fixed": FixedPolicy,
    "off": OffPolicy,
}
