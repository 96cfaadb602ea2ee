"""Tasks: where they come from and how a final workspace is scored."""
