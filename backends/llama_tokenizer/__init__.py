"""Text to ids, ids to text and the facts of the vocabulary, as a Triton backend."""
