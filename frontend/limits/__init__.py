"""Limits: how many requests a key may start in a minute, and how many of them may run and wait at once."""
