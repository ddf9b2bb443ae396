"""Google Cloud, as the steps, the doctor and the command line reach it: one way to every client, retry and error."""
