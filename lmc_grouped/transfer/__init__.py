"""Copies between device pages and host slots."""
