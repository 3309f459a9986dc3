"""Routes: Flask in, Flask out. Each reads a request, calls the part that does the work, and writes the answer."""
