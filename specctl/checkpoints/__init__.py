"""What model folders say of themselves: configs and headers of weights. No weight is read; no network."""
