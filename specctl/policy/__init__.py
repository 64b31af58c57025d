"""Policies: what is wanted, as checked YAML, and the guard rails around any of them."""
