"""Notifications at the end of a run: by e-mail, a webhook or a Pub/Sub topic."""
