"""A script that was meant to be run."""

import sys

sys.exit("usage: exits_on_import.py FILE")
