"""Google's services on loopback: strict, with state, spoken to by the real clients over real sockets."""
