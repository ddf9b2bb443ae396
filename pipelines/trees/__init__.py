"""The template `trees` of `slipway init`, and the checks of its program."""
