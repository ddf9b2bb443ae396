"""`slipway drift`, and runs that train only if the data have drifted."""
