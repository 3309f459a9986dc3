"""Mixed traffic for as long as one likes: `python -m tests.soak --minutes 30`."""
