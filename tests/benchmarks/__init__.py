"""Measures Strata against `vllm serve`: see README.md."""
