"""The parts of consumers: fetching, handling, redelivery. `push_consumer` is the entry point."""
