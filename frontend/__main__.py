"""`python -m frontend`: Strata's command line."""
from __future__ import annotations

from frontend.cli import main

main(prog_name="strata")
