"""How Strata is brought up: `local/` on one machine."""
