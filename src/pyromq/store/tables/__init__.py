"""Small tables kept as JSON files in `config/`."""
