"""Every metric that the daemon serves, once: name, help, labels."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ACCEPTANCE_SURVIVAL",
    "BEST_STATIC",
    "CHANGES",
    "COST",
    "DECISIONS",
    "ENGINE_TOKENS",
    "ERRORS",
    "EXPLORATION_LOST",
    "EXPLORATION_TIME",
    "FROZEN",
    "LEASE_HELD",
    "MIN_TOKEN_PROB",
    "NUM_SPECULATIVE_TOKENS",
    "POLICY_VALID",
    "PREDICTED_TOKENS",
    "REGRET_BEST_STATIC",
    "REGRET_LEFT_OUT",
    "REGRET_OFF",
    "RESTART_ADVISED",
    "TARGETS",
    "TARGET_UP",
    "TICK_SECONDS",
    "Metric",
]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    help: str
    labels: tuple[str, ...] = ("target",)


DECISIONS = Metric("specctl_decisions_total", "Ticks by the reason of their decision.", ("target", "reason"))
CHANGES = Metric("specctl_table_changes_total", "Tables put in force; renewals are not counted.")
ERRORS = Metric("specctl_errors_total", "Failed looks and refused tables.", ("target", "kind"))
TARGET_UP = Metric("specctl_target_up_ratio", "1 when the last look at the target succeeded, else 0.")
LEASE_HELD = Metric("specctl_lease_held_ratio", "1 while this daemon holds the target's table, else 0.")
NUM_SPECULATIVE_TOKENS = Metric(
    "specctl_num_speculative_tokens",
    "The table in force, by decode-batch bucket.",
    ("target", "decode_batch_to"),
)
MIN_TOKEN_PROB = Metric(
    "specctl_min_token_prob_ratio",
    "Least chance of a drafted token to be verified, by decode-batch bucket; as configured where missing.",
    ("target", "decode_batch_to"),
)
PREDICTED_TOKENS = Metric(
    "specctl_predicted_tokens_per_second",
    "Predicted for the busy bucket: chosen, present and off.",
    ("target", "setting"),
)
ENGINE_TOKENS = Metric("specctl_emitted_tokens_total", "Tokens emitted by the target while watched.")
ACCEPTANCE_SURVIVAL = Metric(
    "specctl_acceptance_survival_ratio",
    "Share of drafts whose first tokens, up to the position, were all accepted.",
    ("target", "position"),
)
TICK_SECONDS = Metric("specctl_tick_seconds", "Seconds of one look, decision and change.")
POLICY_VALID = Metric("specctl_policy_valid_ratio", "1 when the policy file on disk is the one in force.", ())
TARGETS = Metric("specctl_watched_targets", "Servers that are watched or steered.", ())
FROZEN = Metric("specctl_frozen_ratio", "1 while the target's table is held and not changed, else 0.")
REGRET_OFF = Metric(
    "specctl_regret_off_ratio",
    "Predicted share of off's tokens per second that was lost; negative: gained, NaN: not known.",
)
REGRET_BEST_STATIC = Metric(
    "specctl_regret_best_static_ratio",
    "The same against the number of drafts that would have been best all the time.",
)
BEST_STATIC = Metric("specctl_best_static_num_speculative_tokens", "That number; 0 is off, NaN: not known.")
REGRET_LEFT_OUT = Metric("specctl_regret_left_out_looks_total", "Looks with steps that nothing predicted.")
EXPLORATION_LOST = Metric(
    "specctl_exploration_lost_ratio", "Share of the tokens that probes lost, discounted; negative: gained."
)
EXPLORATION_TIME = Metric(
    "specctl_exploration_time_ratio", "Share of the step seconds that probes took, discounted."
)
RESTART_ADVISED = Metric(
    "specctl_restart_advised_ratio", "1 while a restart without speculation is advised, else 0."
)
COST = Metric(
    "specctl_predicted_cost_per_million_tokens",
    "Predicted for the chosen setting of the fullest bucket, in the currency of a policy of kind cost.",
)
