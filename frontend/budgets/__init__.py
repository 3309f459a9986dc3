"""Tokens: who has how many, what a running request may use of them, and what it used in the end."""
