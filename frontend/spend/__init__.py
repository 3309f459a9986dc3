"""Spend: what engines cost while they are up, and the limits on it."""
