"""The one-machine launcher: every real part out of the installed packages, under one supervisor."""
