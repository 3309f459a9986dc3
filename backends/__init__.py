"""Triton's Python-based backends: the tokenizer and the vLLM engine, and the decoding that both share."""
