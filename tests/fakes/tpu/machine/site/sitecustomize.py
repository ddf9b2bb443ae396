"""Imported by every Python of a TPU host: the fakes are at Google's addresses, and buckets where docker mounts them."""

import json
import os
import pathlib
import socket
import sys
import time


def _redirect(redirects):
    connect, resolve = socket.create_connection, socket.getaddrinfo

    def target(host, port):
        name = host.decode() if isinstance(host, bytes) else host
        address, _, number = redirects.get(f"{name}:{port}", "").rpartition(":")
        return (address, int(number)) if address else (host, port)

    def create_connection(address, *arguments, **options):
        return connect(target(*address), *arguments, **options)

    def getaddrinfo(host, port, *arguments, **options):
        return resolve(*target(host, port), *arguments, **options)

    socket.create_connection, socket.getaddrinfo = create_connection, getaddrinfo


def _mount(mounts):
    from slipway.core import paths

    for scheme, folder in paths.MOUNTS.items():
        paths.MOUNTS[scheme] = mounts.get(folder, folder)
    points = tuple(pathlib.Path(folder).resolve() for folder in mounts.values())
    paths._mount_points = lambda: points


def _hold(name):
    """Wait for good, so that the training cannot end, when a file of that name is replaced for the second time."""
    replaced = []

    def hear(event, arguments):
        if event == "os.rename" and os.fsdecode(arguments[1]).endswith(f"/{name}"):
            replaced.append(name)
            while len(replaced) > 1:
                time.sleep(60)

    sys.addaudithook(hear)


if "SLIPWAY_TEST_HOLD" in os.environ:
    _hold(os.environ["SLIPWAY_TEST_HOLD"])
if "SLIPWAY_TEST_REDIRECTS" in os.environ:
    _redirect(json.loads(os.environ["SLIPWAY_TEST_REDIRECTS"]))
if "SLIPWAY_TEST_MOUNTS" in os.environ:
    _mount(json.loads(os.environ["SLIPWAY_TEST_MOUNTS"]))
