"""`slipway setup`: what the platforms need before the first run."""
