"""Data sets of the Hugging Face Hub, or of a mirror or the local cache: the source `hf:ORG/NAME`."""
