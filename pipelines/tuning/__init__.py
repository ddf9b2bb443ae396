"""`slipway tune`: many trainings with different settings, of which the best is evaluated and registered."""
