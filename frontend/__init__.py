"""Strata's frontend: the Flask application between callers and Inference."""
