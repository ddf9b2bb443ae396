"""Fakes of Google's services on loopback: strict and stateful, used by the real clients over real sockets."""
