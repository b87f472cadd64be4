"""The parts of sending: queue choice, request forms, retries, outcomes."""
