"""Step costs of a running server: borrow its table, count its steps, fit seconds to them."""
