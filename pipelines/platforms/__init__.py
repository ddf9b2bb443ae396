"""The platforms on which a run executes."""
