"""The broker: stores messages, hands them to consumers, and keeps what it knows of both."""
