"""The Triton model repository: one catalog, and the entries rendered from it that Triton reads as they are."""
