"""Deduplication of repeated sends of numbered producers."""
