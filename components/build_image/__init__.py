"""The step build_image: images named after the content of what goes into them."""
