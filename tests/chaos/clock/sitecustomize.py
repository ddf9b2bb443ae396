"""Imported by every Python of a command: its clock is wrong by SLIPWAY_TEST_CLOCK seconds."""

import os
import time


def _shift(seconds):
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + seconds * 10**9


_shift(int(os.environ["SLIPWAY_TEST_CLOCK"]))
