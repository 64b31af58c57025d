"""``specctl recommend``: which method fits a model and a workload, with its launch command."""
