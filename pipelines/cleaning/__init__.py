"""`slipway runs clean`: what is old and not needed, why the rest is kept, and the trash."""
