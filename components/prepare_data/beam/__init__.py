"""Large data sets listed and written by Apache Beam, such as on Dataflow."""
