"""People, their API keys, and who a caller is."""
