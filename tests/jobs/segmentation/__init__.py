"""Helper modules of the job segment.py."""
