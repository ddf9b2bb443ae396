"""The step build_image: container images tagged by the hash of their content."""
