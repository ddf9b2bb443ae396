"""The commands of `slipway`, by subject; those of a platform are in its folder.

A command's module is imported when the command is called. Heavy packages are imported inside of functions.
"""
