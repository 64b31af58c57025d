"""The decision: estimates, objective, constraints and the plan for one target. No I/O, no clock."""
