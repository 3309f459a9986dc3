"""Jobs: batches of completions that run here and not in the caller's script.

The database knows what is to be done and what is done; messages in Redis only say that there is something to do. So
nothing is lost with Redis or with a worker, and nothing happens twice: each result, its charge and its Job's progress
are one transaction.
"""
