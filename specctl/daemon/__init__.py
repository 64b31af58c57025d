"""The process: one loop for each target, the group that changes one server at a time, reports."""
