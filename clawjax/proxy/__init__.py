"""The model endpoint of a harness: three API dialects, exact token ids."""
