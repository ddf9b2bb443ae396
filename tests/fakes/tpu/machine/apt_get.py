"""A stand-in for apt-get: gcsfuse and the rest are installed already."""
