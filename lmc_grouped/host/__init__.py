"""Bytes on the host: mapped pools and the file tier."""
