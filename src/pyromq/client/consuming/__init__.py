"""What consumers are made of: sharing out queues, fetching, handling, keeping progress. `push_consumer` is the door."""
