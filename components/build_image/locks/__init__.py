"""A project's lock file as the requirements of an image: releases with their hashes, without a call of the network.

`pylock.toml` is read by packaging, which has the standard's rules (PEP 751). `uv.lock` is read here rather than by `uv
export`: an image's tag is that of its requirements, so they must not depend on whether uv is installed, and in which
version. Both become a requirements file of pip, which looks names and versions up in the index that the build is
configured for: URLs of files in a lock are not used.
"""
