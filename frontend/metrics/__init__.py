"""What the frontend counts, and the page on which Prometheus reads it. The counters themselves are in `events`."""
