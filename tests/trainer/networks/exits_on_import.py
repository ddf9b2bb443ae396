"""A module that exits on import, such as a script."""

import sys

sys.exit("usage: exits_on_import.py FILE")
