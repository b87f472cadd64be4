"""The bodies of requests and answers that are more than bytes: values, and how they are written and read."""
