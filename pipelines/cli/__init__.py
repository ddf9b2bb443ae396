"""The commands of `slipway`, by subject; those of `slipway schedule` are in pipelines/schedules.

Every start of `slipway` imports all of them: heavy packages are imported by the commands that need them.
"""
