"""Programs that run inside a sandbox; they import nothing of clawjax."""
