"""Messages to token ids and back; no sessions, no HTTP, no model."""
