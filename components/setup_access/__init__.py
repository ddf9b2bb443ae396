"""Who needs which right on what for a run on Vertex AI: what should be, what is, and making it so."""
