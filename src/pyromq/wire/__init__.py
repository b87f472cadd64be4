"""The remoting protocol: bytes to requests and answers to bytes. No input or output."""
