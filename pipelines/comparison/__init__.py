"""Many runs at once: which ones, in which order, and how they differ."""
