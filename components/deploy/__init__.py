"""The step that deploys a registered model to an endpoint on Vertex AI, in steps of the traffic."""
