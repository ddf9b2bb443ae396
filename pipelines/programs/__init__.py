"""The source of the users' programs: the modules that they import, the names that they use, what they write."""
