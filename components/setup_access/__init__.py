"""Access setup for Vertex AI: desired state, observed state, their difference, and applying it."""
