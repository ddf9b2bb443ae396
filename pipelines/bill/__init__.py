"""`slipway runs bill`: what each second of a training's machines was spent on, and what it cost."""
