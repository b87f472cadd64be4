"""Progress and lag of Spark queries."""
