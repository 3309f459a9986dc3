"""Schemas: strict checks of what callers send, and the shapes of what they get."""
