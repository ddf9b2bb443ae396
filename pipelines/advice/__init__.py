"""Which hardware trains a configuration, how long it takes and what it costs."""
