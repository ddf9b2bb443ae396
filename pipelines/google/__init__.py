"""What runs, commands and checks on Google Cloud have in common."""
