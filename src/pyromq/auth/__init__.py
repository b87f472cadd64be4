"""Authentication of clients and brokers, and their permissions."""
