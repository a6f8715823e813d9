"""What cases are made of."""
