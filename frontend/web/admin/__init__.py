"""The pages of admins; for everybody else they are not there."""
