"""Warmth: which models are to be Warm when, who uses them, and how requests wait for one that is not Warm yet.

The state itself, `cold`, `loading` or `warm`, is always Triton's own. What is in Redis is who waits, who is at work and
what loads have taken. The keeper alone loads and unloads (frontend/keeper).
"""
