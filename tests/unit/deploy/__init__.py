"""Tests of the one-machine launcher."""
