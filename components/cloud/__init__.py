"""Access to Google Cloud: clients, retries, policies and error messages, shared by steps and command line."""
