"""Registration in the Model Registry of Vertex AI."""
