"""The commands of `slipway`, by subject; those of `slipway schedule` are in pipelines/schedules.

Every invocation imports all of these modules, so commands import heavy packages inside their functions.
"""
