"""vLLM as a Triton backend: token ids and sampling in, text, ids and log probabilities out."""
