"""Strata's command line for admins, one module for each topic. Results go to stdout, everything else to stderr.

Exit codes: 0 done, 1 refused (one line says why), 2 wrong usage.
"""
from __future__ import annotations

from frontend.cli.main import main

__all__ = ["main"]
