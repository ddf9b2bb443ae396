"""`slipway config prices`: the list prices by which costs are estimated."""
